"""``turnkeeper bench``: a session server in front of a mock engine, beside the mock hit directly.

``server`` measures the cases of ``scenario``, ``beside`` small sessions beside large ones, ``report`` shows the figures
and what the budget says of them. Nothing of this is part of the tests.
"""
