"""How long one step of a server takes. One model a file; all follow `Latency`."""

from sim.latency.affine import Affine
from sim.latency.protocol import Latency, search_steps

LATENCIES: dict[str, type] = {"affine": Affine}

__all__ = ["LATENCIES", "Affine", "Latency", "search_steps"]
