"""A discrete-event model of LLM servers: batching, policies, latency models and metrics."""

from sim.latency import Affine
from sim.simulate import Result, from_settings, simulate
from sim.static import StaticBatching

__all__ = ["Affine", "Result", "StaticBatching", "from_settings", "simulate"]
