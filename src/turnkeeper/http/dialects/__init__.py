"""The agent-facing APIs."""
