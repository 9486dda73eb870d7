"""Fixtures that several test files share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test needs a model hub, and without a network each attempt costs half a minute.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A deadline measures the machine, not the code, and this machine is shared.
settings.register_profile("estp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("estp")


@pytest.fixture(scope="session")
def reference() -> Path:
    """The folder with the reference data (``data``, ``workloads``, ``vllm_steps``)."""
    folder = os.environ.get("ESTP_REFERENCE")
    if not folder:
        pytest.skip("set ESTP_REFERENCE to the folder with the reference data")
    return Path(folder)
