"""The embedded engine: a real inference engine at toy scale that speaks SGLang's wire."""
