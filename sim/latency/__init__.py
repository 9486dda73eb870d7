"""How long one step of a server takes. One model a file; all follow `Latency`."""

from sim.latency.affine import Affine
from sim.latency.presets import DEVICES, MODELS, Device, Model
from sim.latency.protocol import Latency, search_steps
from sim.latency.roofline import Roofline
from sim.latency.table import Table

LATENCIES: dict[str, type] = {"affine": Affine, "roofline": Roofline, "table": Table}

__all__ = [
    "DEVICES",
    "LATENCIES",
    "MODELS",
    "Affine",
    "Device",
    "Latency",
    "Model",
    "Roofline",
    "Table",
    "search_steps",
]
