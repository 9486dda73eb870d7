"""Sweeps: a grid of simulations on one machine or many, resumable, the same bytes wherever it runs."""

from experiments.sweep.plan import Cell, Plan
from experiments.sweep.run import Swept, sweep
from experiments.sweep.table import Standing, render, standings
from experiments.sweep.yaml_file import read_plan

__all__ = ["Cell", "Plan", "Standing", "Swept", "read_plan", "render", "standings", "sweep"]
