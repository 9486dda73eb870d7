"""Length prediction from an LLM's own prefill activations."""
