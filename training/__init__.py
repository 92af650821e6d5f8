"""Trains the embedded engine: scripts of the repository, not part of the package."""
