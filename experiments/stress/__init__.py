"""Ready-made questions about schedulers that rely on predicted lengths; each ends in one plot and one sentence.

A question is one file: ``TITLE`` says what is asked, ``answer(case)`` runs it (`experiments.stress.case`).
"""

from __future__ import annotations

QUESTIONS = {
    "predictor": "experiments.stress.predictor",
    "oracle-gain": "experiments.stress.oracle_gain",
    "load": "experiments.stress.load",
    "bursts": "experiments.stress.bursts",
    "tails": "experiments.stress.tails",
    "misprediction": "experiments.stress.misprediction",
    "batch-size": "experiments.stress.batch_size",
    "estimate-cost": "experiments.stress.estimate_cost",
    "replicas": "experiments.stress.replicas",
    "prefix": "experiments.stress.prefix",
}
"""Name on the command line -> module."""
