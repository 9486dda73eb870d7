"""Request traces and length estimates: schema, readers and arrivals."""

from traces.errors import InputError
from traces.estimates import Estimates, read_estimates, write_estimates
from traces.export import write_mooncake
from traces.parquet import read_parquet_trace, write_trace
from traces.readers import read_trace
from traces.schema import Trace

__all__ = [
    "Estimates",
    "InputError",
    "Trace",
    "read_estimates",
    "read_parquet_trace",
    "read_trace",
    "write_estimates",
    "write_mooncake",
    "write_trace",
]
