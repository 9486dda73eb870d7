"""The command line, comparisons, plots and reports."""
