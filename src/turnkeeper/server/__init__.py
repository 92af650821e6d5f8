"""All wiring: building the parts from options, serving them, groups of worker processes."""
