"""The load of a measurement: what agents say, the agents, their HTTP client, and many agents at once."""

from turnkeeper.bench.load.run import Latencies, run_load, summarize, take_turns

__all__ = ["Latencies", "run_load", "summarize", "take_turns"]
