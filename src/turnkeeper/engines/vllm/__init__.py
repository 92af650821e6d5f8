"""The wires of vLLM that take token ids."""
