"""The embedded engine: a real inference engine at toy scale that speaks SGLang's wire.

`model` computes, `scheduler` batches requests over it, `engine` runs the scheduler in a thread, `server` puts the
engine on HTTP; `checkpoint` reads and writes the model's folder, `codec` its text side.
"""
