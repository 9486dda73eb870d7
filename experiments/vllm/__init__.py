"""A real vLLM engine beside the simulated one: recorded runs, calibration on them, and the error."""
