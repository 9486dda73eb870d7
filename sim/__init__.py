"""A discrete-event model of LLM servers: batching, policies, latency models and metrics."""

from sim.continuous import ContinuousBatching
from sim.kv import Memory
from sim.latency import Affine, Roofline, Table
from sim.simulate import Result, from_settings, simulate
from sim.static import StaticBatching

__all__ = [
    "Affine",
    "ContinuousBatching",
    "Memory",
    "Result",
    "Roofline",
    "StaticBatching",
    "Table",
    "from_settings",
    "simulate",
]
