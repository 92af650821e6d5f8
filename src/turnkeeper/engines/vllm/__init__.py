"""vLLM's token-in wires."""
