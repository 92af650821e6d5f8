"""Tools for tests: servers on free ports, scripted engines. It may import anything; nothing imports it."""
