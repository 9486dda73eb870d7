"""The engine decides what vLLM 0.32's own scheduler decided, step by step; the truth is in tests/data."""

import copy
import gzip
import json
from pathlib import Path

import pytest

from sim import conformance
from traces.errors import InputError

DATA = Path(__file__).parent / "data"
FILES = [DATA / "vllm_steps.json.gz", DATA / "vllm_steps_prefix.json.gz"]


@pytest.mark.parametrize("leap", [True, False])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_recorded_step_is_identical(path, leap):
    report = conformance.run([path], leap)
    assert report.lines == [f"identical 24 of 24 ({report.steps} steps)"]
    assert report.exit_code == 0
    assert report.steps > 25_000


def test_the_records_hold_what_is_hard():
    """Preemption, priority, unchunked prefill, the threshold, and sharing: or identity says little."""
    cases = [case for path in FILES for case in conformance.read_cases(path)]
    preempting = [case["name"] for case in cases if any(step["preempted"] for step in case["steps"])]
    assert len(preempting) >= 24
    assert {case["limits"]["policy"] for case in cases} == {"fcfs", "priority"}
    assert {case["limits"]["enable_chunked_prefill"] for case in cases} == {True, False}
    assert {case["limits"]["long_prefill_token_threshold"] for case in cases} == {0, 48}
    assert any(request.get("prefix_tokens") for case in cases for request in case["requests"])


def _tampered(change):
    case = copy.deepcopy(conformance.read_cases(FILES[0])[2])
    change(case["steps"])
    return conformance.first_difference(case)


def test_a_difference_is_told_with_its_step():
    def one_token_more(steps):
        steps[7]["tokens"][next(iter(steps[7]["tokens"]))] += 1

    def nobody_preempted(steps):
        next(step for step in steps if step["preempted"])["preempted"] = []

    assert _tampered(lambda steps: None) is None
    assert _tampered(one_token_more).startswith("step 8, tokens: recorded {")
    assert ", preempted: recorded [], ours [" in _tampered(nobody_preempted)
    assert _tampered(lambda steps: steps.pop()).startswith("ours goes on with step")
    assert _tampered(lambda steps: steps.append(steps[-1])).startswith("ours ended before step")


def test_a_failing_case_fails_the_run(tmp_path):
    cases = conformance.read_cases(FILES[0])[:2]
    cases[1]["steps"][0]["finished"] = [99]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    report = conformance.run([path])
    assert report.exit_code == 1
    assert report.lines[0].startswith("seed1-priority: step 5, finished: recorded [99], ours []")
    assert report.lines[-1].startswith("identical 1 of 2 (")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        (b"not json", "is not JSON"),
        (gzip.compress(b"[]")[:-3], "is not JSON"),
        (b"[]", "holds no list of cases"),
        (b'[{"limits": {}, "requests": []}]', "has no 'steps'"),
        (b'[{"limits": {"policy": "lifo"}, "requests": [], "steps": []}]', "limits cannot be read"),
    ],
)
def test_unreadable_files_are_a_users_error(tmp_path, content, message):
    path = tmp_path / "cases.json.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        conformance.run([path])
