"""Measurements, each a module with a command line: ``python -m turnkeeper.bench.engine``."""
