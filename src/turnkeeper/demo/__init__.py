"""The main job in small: collect agentic rollouts across a weight update, and check every figure of it.

``stack`` starts two embedded engines and a session server as processes of their own, ``agent`` plays tasks through a
plain OpenAI client, ``trainer`` updates the weights in the middle of generation, ``collect`` writes what each party
says to a folder, and ``audit`` checks from that folder alone that the parties agree.
"""
