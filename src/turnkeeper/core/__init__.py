"""Sessions as pure data: what happened, and what is true now."""
