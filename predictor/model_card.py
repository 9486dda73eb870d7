"""The model card of a trained length predictor: data, settings, measures and limits, in Markdown."""

import json
from typing import Any

import numpy as np

from predictor.pooling import PoolingSettings
from predictor.rows import prompt_ids, scenarios_of
from predictor.stored import mapping, named, number, text
from predictor.train import Split
from traces import Trace

MEASURES = {
    "mae": "MAE, tokens",
    "rmse": "RMSE, tokens",
    "tau": "Kendall's tau",
    "bin_accuracy": "bin accuracy",
    "crps": "CRPS, tokens",
    "coverage_90": "share within the 90% interval",
    "width_90": "width of that interval, tokens",
}


def data_facts(trace: Trace, split: Split) -> dict[str, Any]:
    """What a predictor was trained and tested on, as JSON-able facts for its card."""
    lengths = trace.output_tokens
    names, rows = np.unique(scenarios_of(trace).astype(str), return_counts=True)
    facts: dict[str, Any] = {
        "rows": len(trace),
        "prompts": len(set(prompt_ids(trace).tolist())),
        "training_rows": len(split.train),
        "validation_rows": len(split.validation),
        "test_rows": len(split.test),
        "scenarios": dict(zip(names.tolist(), rows.tolist(), strict=True)),
        "mean_output_tokens": float(lengths.mean()),
        "median_output_tokens": float(np.median(lengths)),
        "largest_output_tokens": int(lengths.max()),
    }
    if "censored" in trace.extra:
        facts["censored_share"] = float(np.mean(trace.extra["censored"].astype(bool)))
    return facts


NUMBERS = (
    "rows",
    "prompts",
    "training_rows",
    "validation_rows",
    "test_rows",
    "mean_output_tokens",
    "median_output_tokens",
    "largest_output_tokens",
)


def check_facts(facts: Any) -> dict[str, Any]:
    """Facts as `card` takes them, read back from JSON. Raises InputError naming what is otherwise."""
    found = mapping(facts, "facts")
    for key in ("train", "data", "test", "constant", "rows"):
        mapping(found.get(key, {}), f"facts.{key}")
    mapping(found.get("data", {}).get("rollout", {}), "facts.data.rollout")
    for key in ("test", "constant"):
        for measure, value in found.get(key, {}).items():
            number(value, f"facts.{key}.{measure}")
    if rows := found.get("rows"):
        for key, value in zip(NUMBERS, named(rows, "facts.rows", *NUMBERS), strict=True):
            number(value, f"facts.rows.{key}")
        number(rows.get("censored_share", 0), "facts.rows.censored_share")
        (scenarios,) = named(rows, "facts.rows", "scenarios")
        for scenario, count in mapping(scenarios, "facts.rows.scenarios").items():
            number(count, f"facts.rows.scenarios.{scenario}")
    if "conformal" in found:
        (prompts,) = named(found["conformal"], "facts.conformal", "prompts")
        number(prompts, "facts.conformal.prompts")
    text(json.dumps(found, ensure_ascii=False), "facts")
    return found


def card(
    name: str,
    backbone: str,
    fingerprint: str,
    dtype: str,
    pooling: PoolingSettings,
    layers: tuple[int, ...],
    edges: tuple[float, ...],
    facts: dict[str, Any],
) -> str:
    """The text of README.md, with the front matter that model hubs read.

    `facts`: what training left behind (`data_facts` under "rows", measures under "test" and "constant"); what
    is not in it is left out of the card.
    """
    parts = [
        "---\nlicense: apache-2.0\nlibrary_name: estp\ntags:\n- llm-scheduling\n- output-length-prediction\n---",
        f"# Length predictor `{name}`",
        f"Predicts how many tokens `{backbone}` writes in answer to a prompt, from the activations of that LLM's "
        "own prefill, for schedulers that serve short answers first.",
        "## Use\n\n```sh\nestp predict trace.parquet estimates.parquet --predictor THIS_FOLDER\n```",
        "## Data\n\n" + "\n".join(_data(facts.get("rows", {}), facts.get("data", {}))),
        "## Settings\n\n" + "\n".join(_settings(backbone, fingerprint, dtype, pooling, layers, edges, facts)),
        "## Measured on held-out prompts\n\n" + "\n".join(_measures(facts)),
        "## Limits\n\n" + "\n".join(_limits(edges, facts.get("rows", {}))),
        f"## Everything on record\n\n```json\n{json.dumps(facts, indent=1, sort_keys=True)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _data(rows: dict[str, Any], source: dict[str, Any]) -> list[str]:
    lines = []
    if rows:
        scenarios = ", ".join(f"{name} {count:,}" for name, count in rows["scenarios"].items() if name != "-")
        lines += [
            f"* {rows['rows']:,} real answers to {rows['prompts']:,} prompts{f': {scenarios}' if scenarios else ''}",
            f"* {rows['training_rows']:,} rows trained on, {rows['validation_rows']:,} chosen on, "
            f"{rows['test_rows']:,} tested on; all answers to one prompt are in one part",
            f"* answers of {rows['mean_output_tokens']:.0f} tokens on average, median "
            f"{rows['median_output_tokens']:.0f}, longest {rows['largest_output_tokens']}",
        ]
        if "censored_share" in rows:
            lines.append(f"* {rows['censored_share']:.1%} of them cut at the generation limit")
    if "rollout" in source:
        generation = ", ".join(f"{key} {value}" for key, value in sorted(source["rollout"].items()))
        lines.append(f"* generated with: {generation}")
    return lines or ["Not recorded."]


def _settings(
    backbone: str,
    fingerprint: str,
    dtype: str,
    pooling: PoolingSettings,
    layers: tuple[int, ...],
    edges: tuple[float, ...],
    facts: dict[str, Any],
) -> list[str]:
    shown = ", ".join(f"{key} {value}" for key, value in pooling.to_json().items())
    if layers:
        shown = f"last, of layers {', '.join(map(str, layers))} side by side (0: the embeddings)"
    lines = [
        f"* activations: `{backbone}` (fingerprint `{fingerprint}`), {dtype}",
        f"* pooling: {shown}",
        f"* head: {len(edges) - 1} length bins from {edges[0]:g} to {edges[-1]:g} tokens",
    ]
    if "conformal" in facts:
        prompts = facts["conformal"]["prompts"]
        lines.append(
            f"* quantiles: with a split-conformal correction from {prompts} of the prompts chosen on"
        )
    if "train" in facts:
        lines.append(
            "* training: " + ", ".join(f"{key} {value}" for key, value in sorted(facts["train"].items()))
        )
    return lines


def _measures(facts: dict[str, Any]) -> list[str]:
    test, constant = facts.get("test"), facts.get("constant")
    if test is None:
        return ["Not measured."]
    lines = ["| measure | this predictor | constant (training median) |", "| --- | --- | --- |"]
    for key, name in MEASURES.items():
        if key in test:
            lines.append(f"| {name} | {_number(test[key])} | {_number((constant or {}).get(key))} |")
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _limits(edges: tuple[float, ...], rows: dict[str, Any]) -> list[str]:
    lines = [
        "* It reads one LLM's activations in one precision and refuses all others.",
        "* It knows the chat template, sampling settings and kinds of prompt above; on others it is a guess.",
        f"* Its mean stays between {edges[0]:g} and {edges[-1]:g} tokens; longer answers are counted to the last bin.",
        "* A mean is no bound: two answers to one prompt can differ widely.",
    ]
    if rows.get("censored_share"):
        lines.append(
            "* Cut answers were taken at the length at which they were cut, so long ones are underrated."
        )
    return lines
