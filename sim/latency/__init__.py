"""How long one step of a server takes. One model a file; all follow `Latency`."""

from sim.latency.affine import Affine
from sim.latency.files import LatencyFile, latency_from, read_latency_file
from sim.latency.presets import DEVICES, MODELS, Device, Model
from sim.latency.profile import Profile
from sim.latency.protocol import Latency, search_steps
from sim.latency.roofline import Roofline
from sim.latency.table import Table
from sim.plugins import load

LATENCIES: dict[str, type] = {"affine": Affine, "profile": Profile, "roofline": Roofline, "table": Table}


def load_latency(spec: str) -> Latency:
    """The model that text names: ``file=PATH``, ``affine,a=0.01,...``, or ``own.py:Class,key=value``.

    Raises:
        InputError: an unknown name or key, or a file that cannot be used.
    """
    model: Latency = latency_from(spec) or load(spec, "latency model", LATENCIES)
    return model


__all__ = [
    "DEVICES",
    "LATENCIES",
    "MODELS",
    "Affine",
    "Device",
    "Latency",
    "LatencyFile",
    "Model",
    "Profile",
    "Roofline",
    "Table",
    "load_latency",
    "read_latency_file",
    "search_steps",
]
