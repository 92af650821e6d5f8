"""Measurements, never part of the tests: ``turnkeeper bench`` starts them.

``server`` drives a session server in front of a mock engine, beside the mock hit directly; ``engine`` measures the
embedded engine, ``rendering`` what a suffix costs, ``samples`` what is done with a session at its end, ``client`` the
HTTP client that calls engines, ``parts`` the pure parts of a turn, ``profile`` where its
time goes. ``updates`` proves what weight updates leave behind.
"""
