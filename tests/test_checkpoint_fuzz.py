"""A checkpoint whose config.json was changed anywhere loads as what it says, or is refused in a sentence.

Every value of the file, however deep, is replaced by one of another kind or out of range, left out, or given company;
the twin of a checkpoint that loads is the file's own JSON.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from predictor.backbone import Backbone, load_backbone  # noqa: E402
from predictor.checkpoint import LengthPredictor, as_estimates, load_predictor  # noqa: E402
from predictor.conformal import Correction  # noqa: E402
from predictor.features import PromptSignals, fingerprint  # noqa: E402
from predictor.pooling import PoolingSettings, PositionTrend  # noqa: E402
from traces.errors import InputError  # noqa: E402

TINY, WIDTH = Path(__file__).parent / "data" / "tiny_lm", 192
FACTS = {
    "rows": {"rows": 9, "prompts": 9, "training_rows": 5, "validation_rows": 2, "test_rows": 2, "scenarios": {"a": 9},
             "mean_output_tokens": 5.5, "median_output_tokens": 4.0, "largest_output_tokens": 40,
             "censored_share": 0.1},
    "data": {"rollout": {"top_k": 50}},
    "train": {"seed": 0},
    "test": {"mae": 3.0, "tau": 0.5},
    "constant": {"mae": 4.0},
}  # fmt: skip
SHARED: dict[str, Any] = {
    "predictor": "estp",
    "backbone": "tiny-lm",
    "backbone_fingerprint": "0123456789abcdef",
    "dtype": "float32",
    "edges": [1.0, 10.0, 50.0],
    "facts": FACTS,
    "conformal": Correction({0.05: -0.5, 0.5: 0.1, 0.95: 0.2}, 19).to_json(),
}
TREND = PositionTrend((0, 1, 3), (0.1, -0.2, -0.4), 7)
KINDS: dict[str, dict[str, Any]] = {
    "pooled": {"pooling": PoolingSettings("estp", "detrended", 0.3, 0.7).to_json(), "features": WIDTH,
               "trend": TREND.to_json()},
    "layers": {"pooling": PoolingSettings("last").to_json(), "features": 2 * WIDTH, "layers": [1, 2]},
}  # fmt: skip
ODD = st.sampled_from(
    [None, True, "", "x", "\ud800", [], [1], [[1, 2]], {}, {"x": 1}, -1, 0, 1, 2.5, 1e308, -1e308, 10**400, 2**62,
     float("nan"), float("inf"), float("-inf")]
)  # fmt: skip
OPTIONAL = {"facts": {}, "trend": None, "conformal": None, "layers": None}


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone(str(TINY), "cpu", "float32")


@pytest.fixture(scope="module")
def folders(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for kind, own in KINDS.items():
        torch.manual_seed(0)
        made[kind] = tmp_path_factory.mktemp(kind) / "p"
        LengthPredictor(**{**SHARED, **own, "backbone_fingerprint": fingerprint(tiny)}).write(made[kind])
    return made


def places(value: Any) -> list[tuple[Any, ...]]:
    """The path to every value below this one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, one in inner for path in ((key,), *((key, *rest) for rest in places(one)))]


def changed(config: Any, path: tuple[Any, ...], how: str, odd: Any) -> Any:
    config = copy.deepcopy(config)
    *outer, key = path
    inside = config
    for step in outer:
        inside = inside[step]
    if how == "replace":
        inside[key] = odd
    elif how == "remove":
        del inside[key]
    elif isinstance(inside, dict):
        inside["more"] = odd
    else:
        inside.append(odd)
    return config


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(sorted(KINDS)), st.sampled_from(["replace", "remove", "add"]), ODD)
def test_a_changed_config_is_what_it_says_or_a_sentence(
    folders: dict[str, Path], tiny: Backbone, data: st.DataObject, kind: str, how: str, odd: Any
) -> None:
    file = folders[kind] / "config.json"
    whole = file.read_bytes()
    config = changed(json.loads(whole), data.draw(st.sampled_from(places(json.loads(whole)))), how, odd)
    file.write_text(json.dumps(config))
    try:
        one = sentence_or(lambda: load_predictor(folders[kind]))
    finally:
        file.write_bytes(whole)
    if one is None:
        return
    assert_says(one, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy's, of numbers that leave the range of floats
        sentence_or(lambda: use(one, tiny))


def sentence_or(call: Callable[[], Any]) -> Any:
    """What the call gives back, or None after an InputError of one line."""
    try:
        return call()
    except InputError as error:
        (line,) = str(error).splitlines()
        return None if line else pytest.fail("an error without words")


def assert_says(one: LengthPredictor, config: dict[str, Any]) -> None:
    """What was loaded is the file's, key by key."""
    found = {
        "predictor": one.predictor,
        "backbone": one.backbone,
        "backbone_fingerprint": one.backbone_fingerprint,
        "dtype": one.dtype_name,
        "edges": list(one.bins.edges),
        "features": len(one.head.mean),
        "pooling": one.pooling.to_json(),
        "trend": None if one.trend is None else json.loads(json.dumps(one.trend.to_json())),
        "conformal": None if one.conformal is None else one.conformal.to_json(),
        "layers": list(one.layers) or None,
        "facts": one.facts,
    }
    for key, value in found.items():
        given = OPTIONAL.get(key) if config.get(key) is None or config[key] == [] else config[key]
        if key in ("trend", "conformal") and given is not None:
            assert value is not None
            given = {k: v for k, v in given.items() if k in value}
        if key == "conformal" and given is not None:
            given, value = ({**x, "shifts": sorted(map(list, x["shifts"]))} for x in (given, value))
        assert json.dumps(value, sort_keys=True) == json.dumps(given, sort_keys=True) or value == given, key


def use(one: LengthPredictor, backbone: Backbone) -> None:
    """All that the commands do with a predictor; InputError at most."""
    one.check_backbone(backbone)
    rng = np.random.default_rng(0)
    states = torch.tensor(rng.normal(size=(5, WIDTH)), dtype=torch.float16)
    signals = PromptSignals(
        states, torch.rand(5), torch.full((5,), 0.2), None, dict.fromkeys(one.layers, states[-1])
    )
    assert one.summary()
    assert "## Settings" in str(one.generate_model_card())
    json.dumps(one.identity(), allow_nan=False)
    one.weights(signals, "a")
    estimates = as_estimates(one, np.arange(1), one.probabilities([signals], ["a"]))
    one.check_estimates(estimates)


@pytest.mark.parametrize(
    "facts", [[], "x", 3, False, {"test": []}, {"test": {"mae": "x"}}, {"rows": {"rows": 1}}]
)
def test_facts_that_are_no_facts_are_refused(facts: Any) -> None:
    with pytest.raises(InputError, match=r"^facts"):
        LengthPredictor(**{**SHARED, "facts": facts}, **KINDS["pooled"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: {**w, "more": torch.zeros(1)}, "has an unknown tensor 'more'"),
        (lambda w: {k: v for k, v in w.items() if k != "head.mean"}, "lacks tensor 'head.mean'"),
        (lambda w: {**w, "head.mean": w["head.mean"].double()}, r"mean is \[192\] float64 in .* \[192\] float32"),
        (lambda w: {**w, "head.mean": w["head.mean"] * torch.nan}, "head.mean holds values that are not finite"),
    ],
)  # fmt: skip
def test_other_weights_are_refused(change: Any, sentence: str, folders: dict[str, Path]) -> None:
    file = folders["pooled"] / "model.safetensors"
    whole = file.read_bytes()
    try:
        save_file(change(load_file(file)), file)
        with pytest.raises(InputError, match=sentence):
            load_predictor(folders["pooled"])
    finally:
        file.write_bytes(whole)


def test_sizes_beyond_all_memory_are_refused_at_once(folders: dict[str, Path]) -> None:
    file = folders["pooled"] / "config.json"
    whole = file.read_bytes()
    try:
        for features in (10**6, 2**62):  # a head of 2 TB, and one whose size no integer holds
            file.write_text(json.dumps({**json.loads(whole), "features": features}))
            with pytest.raises(InputError, match="cannot load a predictor"):
                load_predictor(folders["pooled"])
        file.write_text("[" * 100_000)
        with pytest.raises(InputError, match="is not JSON"):
            load_predictor(folders["pooled"])
    finally:
        file.write_bytes(whole)
