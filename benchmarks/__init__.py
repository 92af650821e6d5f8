"""Instruments that measure parts of turnkeeper, and the proof of weight updates: in the repository, not in the wheel.

Each module is a command, for example ``python -m benchmarks.parts`` or ``python -m benchmarks.updates``. What measures
a whole session server is part of the product: ``turnkeeper bench``.
"""
