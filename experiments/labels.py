"""What tables and plots call a policy."""

from __future__ import annotations

from collections.abc import Sequence


def label(policy: str) -> str:
    """``a/mine.py:Mine,w=1`` is ``Mine (w=1)``; the shortest first by predictor p is ``p``, and a guard
    around an order is named after it: ``estp + aging (rate=5)``.
    """
    name, *settings = policy.split(",")
    name = name.rsplit(":", 1)[-1]
    if name == "shortest" and settings and settings[0].startswith("predictor="):
        name = settings.pop(0).removeprefix("predictor=")
    for setting in settings:
        if setting.startswith("inner="):
            name = f"{label(setting.removeprefix('inner=').replace('+', ','))} + {name}"
            settings = [other for other in settings if other != setting]
    shown = [setting.removeprefix("predictor=") for setting in settings]
    return f"{name} ({', '.join(shown)})" if shown else name


def labels(policies: Sequence[str]) -> dict[str, str]:
    """Policy -> label; the whole name where two would be called the same."""
    short = {policy: label(policy) for policy in policies}
    called = list(short.values())
    return {policy: policy if called.count(text) > 1 else text for policy, text in short.items()}
