"""A discrete-event model of LLM servers: batching, policies, latency models and metrics."""
