"""Reports: one HTML file of what a comparison, a sweep or stress questions found."""

from experiments.report.write import write_report

__all__ = ["write_report"]
