"""Heads beside the soft-label one of predictor/head.py: other losses and other kinds of answer."""
