"""Which prompts begin alike, token by token, for traces that have their text."""

from __future__ import annotations

import dataclasses

import numpy as np

from traces.errors import InputError
from traces.schema import Trace, object_array, shown_id
from traces.tokens import load_tokenizer

BLOCK_TOKENS = 16


def with_prompt_hashes(trace: Trace, tokenizer: str, block_tokens: int = BLOCK_TOKENS) -> Trace:
    """The trace with ``hash_ids`` from the prompts' own tokens, so that equal beginnings share KV blocks.

    An id stands for ``block_tokens`` tokens and all before them, as vLLM's block hashes do; what does
    not fill a block has none. A chat template's tokens are not in the text and count for nothing.

    Args:
        trace: with prompts.
        tokenizer: as in ``read_trace``.
        block_tokens: best the block size of the server, or a divisor of it.

    Raises:
        InputError: the trace has no prompts, or one is missing; the tokenizer is not to be had.
    """
    if trace.prompt is None:
        raise InputError("the trace has no prompts, so it cannot be told which of them begin alike")
    for row, text in enumerate(trace.prompt):
        if text is None:
            raise InputError(
                f"request {shown_id(trace.request_id, row)} (row {row}) has no prompt, so what it shares is not known"
            )
    encoded = load_tokenizer(tokenizer).encode_batch_fast(trace.prompt.tolist(), add_special_tokens=False)
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    rows = []
    for tokens, length in zip(encoded, trace.prompt_tokens.tolist(), strict=True):
        ids, parent = tokens.ids, -1
        named: list[int] = []
        for start in range(0, min(len(ids), length) // block_tokens * block_tokens, block_tokens):
            block = tuple(ids[start : start + block_tokens])
            parent = numbers.setdefault((parent, block), len(numbers))
            named.append(parent)
        rows.append(np.array(named, np.int64))
    metadata = trace.metadata | {"hash_block_tokens": block_tokens, "hashed_by": tokenizer}
    return dataclasses.replace(trace, hash_ids=object_array(rows), metadata=metadata)
