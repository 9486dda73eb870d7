"""Simulated against real: replay one trace in both, and show the error."""
