"""A policy of your own: ``estp compare trace.parquet --policy examples/my_policy.py:Mine,weight=0.2``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mine:
    """Short answers first, and of two equally short ones the shorter prompt: smallest number first."""

    weight: float = 0.1

    def __call__(self, request, now_s):
        return request.estimate("estp").mean + self.weight * request.prompt_tokens
