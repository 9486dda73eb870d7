"""A discrete-event model of LLM servers: batching, policies, latency models and metrics."""

from sim.latency import Affine, Roofline, Table
from sim.simulate import Result, from_settings, simulate
from sim.static import StaticBatching

__all__ = ["Affine", "Result", "Roofline", "StaticBatching", "Table", "from_settings", "simulate"]
