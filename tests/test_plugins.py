"""Names become the objects they name, one's own files included; what cannot be made is said in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sim import Affine, StaticBatching, from_settings, simulate
from sim.plugins import load, spec_of
from sim.policies import ALIASES, POLICIES
from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Trace

TRACE = Trace(np.arange(3), np.zeros(3), np.array([50, 10, 30]), np.array([2, 2, 2]))
OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    weight: float = 0.1
    def __call__(self, request, now_s):
        return self.weight * request.prompt_tokens

def plain(request, now_s):
    return -request.prompt_tokens

class Idle:
    pass

class Needs:
    def __init__(self, limit: int):
        self.limit = limit
    def __call__(self, request, now_s):
        return min(request.prompt_tokens, self.limit)
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def served(policy, **options):
    run = simulate(TRACE, policy, StaticBatching(1), Affine(1.0), **options)
    return run.records["first_scheduled_s"].arg_sort().to_list(), run


def test_a_policy_from_a_file(own):
    assert load(f"{own}:Mine,weight=0.25", "policy", POLICIES).weight == 0.25
    assert served(f"{own}:Mine")[0] == [1, 2, 0]
    assert served(f"{own}:Mine,weight=-1")[0] == [0, 2, 1]
    assert served(f"{own}:plain")[0] == [0, 2, 1]
    assert served(f"{own}:Needs,limit=20")[0] == [1, 0, 2]


def test_a_run_with_a_policy_from_a_file_can_be_run_again(own):
    _, run = served(f"{own}:Mine,weight=-1")
    assert run.settings["policy"] == f"{own}:Mine,weight=-1"
    assert simulate(TRACE, **from_settings(run.settings)).records.equals(run.records)
    _, made = served(load(f"{own}:Mine,weight=-1", "policy", POLICIES))
    assert made.settings["policy"] == f"{own}:Mine,weight=-1.0"


def test_the_example_policy_is_short_and_runs():
    path = Path(__file__).parents[1] / "examples" / "my_policy.py"
    assert len(path.read_text().splitlines()) < 20
    estimates = {"estp": Estimates("estp", np.arange(3), np.array([6.0, 6.0, 1.0]))}
    assert served(f"{path}:Mine,weight=0.2", estimates=estimates)[0] == [2, 1, 0]


def test_two_files_of_one_name_stay_apart(own, tmp_path):
    other = tmp_path / "elsewhere" / "own.py"
    other.parent.mkdir()
    other.write_text("def plain(request, now_s):\n    return 0.0\n")
    assert served(f"{own}:plain")[0] == [0, 2, 1]
    assert served(f"{other}:plain")[0] == [0, 1, 2]
    assert served(f"{own}:plain")[0] == [0, 2, 1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sfj", "unknown policy 'sfj': did you mean sjf"),
        ("estpp", "did you mean estp"),
        ("qqq", "known are fcfs, random, shortest"),
        ("mine", "shortest,predictor=mine for a predictor's order, or your own as file.py:Class"),
        ("shortest", "needs a value for predictor: write shortest,predictor=..."),
        ("shortest,predictor", "not of the form key=value"),
        ("shortest,predictor=", "not of the form key=value"),
        ("shortest,predictor=a,predictor=b", "given twice"),
        ("sjf,sigma=much", "sigma = 'much' is not float"),
        ("sjf,size=3", "no setting 'size'; it has: predictor, sigma"),
        ("OWN:Mine,weights=1", "no setting 'weights'; it has: weight"),
        ("OWN:Mine,weight=big", "weight = 'big' is not float"),
        ("OWN:Miner", "no class 'Miner'; it has: Mine, plain, Idle, Needs"),
        ("OWN:Idle", "no __call__"),
        ("OWN:plain,x=1", "a function takes no settings"),
        ("OWN:Needs", "needs a value for limit"),
        ("nowhere.py:Mine", "nowhere.py does not exist"),
    ],
)
def test_what_cannot_be_made(own, spec, message):
    with pytest.raises(InputError) as error:
        load(spec.replace("OWN", str(own)), "policy", POLICIES, ALIASES)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = 1 / 0\n", "bad.py:2 raised ZeroDivisionError: division by zero"),
        ("x = 1\n\ndef f(:\n", "bad.py:3 raised SyntaxError"),
        ("import nowhere_to_be_found\n", "bad.py:1 raised ModuleNotFoundError"),
    ],
)
def test_a_file_that_does_not_load(tmp_path, text, message):
    path = tmp_path / "bad.py"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load(f"{path}:Mine", "policy", POLICIES)
    assert message in str(error.value)


@dataclass(frozen=True)
class Typed:
    count: int = 1
    share: float = 0.5
    name: str | None = "x"
    on: bool = False

    def __call__(self, request, now_s):
        return 0.0


def test_values_have_the_type_of_their_field():
    classes = {"typed": Typed}
    assert load("typed,count=3,share=2,name=none,on=true", "policy", classes) == Typed(3, 2.0, None, True)
    assert load("typed, count = 3 , name=4", "policy", classes) == Typed(3, name="4")
    assert spec_of(Typed(share=2.0, on=True), classes) == "typed,share=2.0,on=True"
    assert load(spec_of(Typed(share=2.0, on=True), classes), "policy", classes) == Typed(share=2.0, on=True)
    with pytest.raises(InputError, match=r"count = '2\.5' is not int"):
        load("typed,count=2.5", "policy", classes)
