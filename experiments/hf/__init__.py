"""A real engine of padded batches on Hugging Face transformers: calibrated on, and set beside the simulation."""
