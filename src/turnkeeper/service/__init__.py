"""Sessions as a service: where the pure core meets engines, clocks and connections."""
