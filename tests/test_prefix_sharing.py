"""Where prefix sharing comes from, and how much there is: hit counts against a brute-force infinite cache.

Under first come, first served a prompt's slots are all handed out before the next request is admitted, so
a cache that holds everything must hit exactly what any earlier prompt has in common with this one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Affine, ContinuousBatching, simulate
from traces import read_trace
from traces.errors import InputError
from traces.schema import Trace, object_array
from traces.shared_prompts import with_prompt_hashes
from traces.tokens import count_tokens

QUICK = Affine(a=6e-4, b=4e-6, c=2e-6)
TINY_LM = Path(__file__).parent / "data" / "tiny_lm"


def infinite_cache(trace: Trace, block_size: int) -> int:
    """Tokens that a cache without bounds hits, counted block by block from sets of prefixes."""
    assert trace.hash_ids is not None
    tokens = int(trace.metadata["hash_block_tokens"])
    seen: set[tuple[int, ...]] = set()
    total = 0
    for ids, prompt in zip(trace.hash_ids, trace.prompt_tokens.tolist(), strict=True):
        path, known = tuple(ids.tolist()), 0
        while known < len(path) and path[known] in seen:
            known += 1
        total += min(min(known * tokens, prompt) // block_size, (prompt - 1) // block_size) * block_size
        seen.update(path)
    return total


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_a_large_cache_hits_all_that_an_infinite_one_would(reference: Path, name: str) -> None:
    trace = read_trace(reference / f"data/1_traces/mooncake_fast25/{name}_trace.jsonl")
    large = simulate(trace, batching=ContinuousBatching(num_blocks=6_000_000), latency=QUICK).metrics
    small = simulate(trace, batching=ContinuousBatching(num_blocks=30_000), latency=QUICK).metrics
    assert large["completed"] == len(trace)
    assert large["prefix_hit_tokens"] == infinite_cache(trace, 16)
    assert 0 < small["prefix_hit_tokens"] < large["prefix_hit_tokens"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=12), st.data())
def test_hits_of_a_roomy_cache_by_brute_force(paths: list[list[int]], data: st.DataObject) -> None:
    # Ids name a place and all before it, as a trace's do.
    numbers: dict[tuple[int, ...], int] = {}
    rows = [
        np.array([numbers.setdefault(tuple(path[: i + 1]), len(numbers)) for i in range(len(path))], np.int64)
        for path in paths
    ]
    # The last id stands for what is left of the prompt: if that is less than 8 tokens, nobody else has it.
    prompts = []
    for number, row in enumerate(rows):
        cut = data.draw(st.integers(0, 7))
        prompts.append(max(1, 8 * len(row) - cut))
        if cut and len(row):
            row[-1] = 1000 + number
    trace = Trace(
        np.arange(len(rows)),
        np.cumsum([data.draw(st.sampled_from([0.0, 0.001, 1.0])) for _ in rows]),
        prompts,
        [data.draw(st.integers(1, 5)) for _ in rows],
        hash_ids=object_array(rows),
        metadata={"hash_block_tokens": 8},
    )
    block_size = data.draw(st.sampled_from([2, 4, 8, 16]))
    batching = ContinuousBatching(num_blocks=10_000, block_size=block_size)
    hits = simulate(trace, batching=batching, latency=QUICK).metrics["prefix_hit_tokens"]
    assert hits == infinite_cache(trace, block_size)


def test_prompts_share_the_tokens_with_which_they_begin() -> None:
    story = "Count the words of this list and add them up, please: " * 6
    texts = [story + "one " * 9, story + "two " * 9, "Something else: " + story]
    prompt_tokens = count_tokens(texts, str(TINY_LM))
    trace = Trace(np.arange(3), [0.0, 1.0, 2.0], prompt_tokens, [1] * 3, prompt=texts)
    hashed = with_prompt_hashes(trace, str(TINY_LM), block_tokens=4)
    assert hashed.hash_ids is not None
    first, second, third = (row.tolist() for row in hashed.hash_ids)
    common = next(i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    assert common * 4 <= count_tokens([story], str(TINY_LM))[0] < (common + 2) * 4
    assert not set(first[common:]) & set(second[common:])
    assert not set(first) & set(third)
    result = simulate(hashed, batching=ContinuousBatching(num_blocks=1000, block_size=4), latency=QUICK)
    assert result.records["prefix_hit_tokens"].to_list() == [0, 4 * common, 0]


def test_without_prompts_it_is_said() -> None:
    trace = Trace([0], [0.0], [4], [1])
    with pytest.raises(InputError, match="no prompts"):
        with_prompt_hashes(trace, str(TINY_LM))
    with pytest.raises(InputError, match="request 0"):
        with_prompt_hashes(trace.replace(prompt=[None]), str(TINY_LM))
