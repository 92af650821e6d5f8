"""A module of hooks that cannot be imported."""

raise RuntimeError("no such file")
