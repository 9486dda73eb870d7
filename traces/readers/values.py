"""What a raw column holds: text, whole numbers, or dates."""

from __future__ import annotations

import polars as pl

# What was a list or an object in JSON is kept as its spelling, in a column that is not taken for text.
SPELLED = pl.Struct({"json": pl.String})
DATE_FORMATS = (
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d %H:%M:%S%.f%:z",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%:z",
    "%Y-%m-%dT%H:%M:%S%.fZ",
    "%Y-%m-%d %H:%M:%S%.fZ",
)


def holds_dates(series: pl.Series) -> bool:
    """Whether a column is dates, or text of which some among the first hundred is a date."""
    if series.dtype.is_temporal():
        return True
    if series.dtype != pl.String:
        return False
    head = series.drop_nulls().head(100)
    return len(head) > 0 and as_nanoseconds(head).null_count() < len(head)


def as_nanoseconds(series: pl.Series) -> pl.Series:
    """Dates and times as whole nanoseconds since 1970 in UTC; null where there is none."""
    if series.dtype.is_temporal():
        return series.cast(pl.Datetime("ns"), strict=False).to_physical()
    text = stripped(series)
    whole = pl.Series(series.name, [None] * len(text), dtype=pl.Int64)
    for form in DATE_FORMATS:
        missing = whole.is_null()
        if not missing.any():
            break
        parsed = text.str.to_datetime(form, time_unit="ns", strict=False).to_physical()
        whole = whole.zip_with(~missing, parsed)
    return whole


def stripped(series: pl.Series) -> pl.Series:
    """The column without blanks around its text; numbers as they are."""
    if series.dtype.is_numeric():
        return series
    return as_text(series).str.strip_chars()


def as_integers(series: pl.Series) -> pl.Series:
    """Whole numbers exactly, with null for anything else."""
    if series.dtype.is_float():
        whole = series.cast(pl.Int64, strict=False)
        return whole.set(whole.cast(pl.Float64) != series.cast(pl.Float64), None)
    return stripped(series).cast(pl.Int64, strict=False)


def as_text(series: pl.Series) -> pl.Series:
    """The column as text, spelled as it was read."""
    if series.dtype == pl.String:
        return series
    if series.dtype == SPELLED:
        return series.struct.field("json").alias(series.name)
    if series.dtype.is_nested():
        return pl.Series(
            series.name, [None if v is None else str(v) for v in series.to_list()], dtype=pl.String
        )
    return series.cast(pl.String)
