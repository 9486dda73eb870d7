"""The paper's diagnostics as text, JSON and a figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from experiments.style import (
    BLUE,
    DASHED,
    DOTTED,
    GREY,
    ORANGE,
    log_axis,
    new_figure,
    plot_style,
    save_figure,
)
from predictor.backbone import Backbone
from predictor.checkpoint import LengthPredictor
from predictor.diagnostics import (
    Mismatch,
    by_kind,
    by_position,
    correlations,
    importance,
    mean_interval,
    mismatch,
    uniform_received,
)
from predictor.explain import pieces
from predictor.features import PromptSignals
from predictor.head import Floats
from predictor.token_kinds import kinds, template_ends
from traces.errors import InputError

PAPER_MISMATCH = (0.2343, 0.2148)
PAPER_CORRELATION = 0.424


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What `diagnose` found. correlations: signal -> gradient -> (mean r, low, high, mean rho) over prompts."""

    prompts: int
    gradient_prompts: int
    mismatches: dict[str, Mismatch]
    correlations: dict[str, dict[str, tuple[float, float, float, float]]]
    kinds: dict[str, dict[str, float]]
    positions: dict[str, list[float]]


def diagnose(
    backbone: Backbone,
    predictor: LengthPredictor,
    prompts: Sequence[str],
    signals: Sequence[PromptSignals],
    gradient_prompts: int,
    rng: np.random.Generator,
    *,
    progress: bool = True,
) -> Diagnosis:
    """All diagnostics of different prompts; gradients for a random `gradient_prompts` of them.

    Raises InputError when a predictor has no token weights, or a prompt fewer than two tokens.
    """
    check_predictor(predictor, backbone)
    weights = []
    for prompt, one in zip(prompts, signals, strict=True):
        weight = predictor.weights(one, prompt)
        assert weight is not None
        if len(weight) < 2:
            raise InputError(f"a prompt has a single token, which cannot be compared: {prompt!r}")
        weights.append(weight)
    entropy = [one.entropy.double().numpy() for one in signals]
    received = [one.received.double().numpy() for one in signals]
    over = [s / uniform_received(len(s), one.window) for s, one in zip(received, signals, strict=True)]
    ends = template_ends(backbone)
    named = [kinds(pieces(backbone, prompt), *ends) for prompt in prompts]
    chosen = sorted(rng.choice(len(prompts), min(gradient_prompts, len(prompts)), replace=False).tolist())
    gradients = [
        importance(backbone, predictor, prompts[i], weights[i])
        for i in tqdm(chosen, unit="prompt", desc="gradients", disable=not progress, leave=False)
    ]
    columns: dict[str, list[Floats]] = {
        "S, attention received": [received[i] for i in chosen],
        "S over uniform attention": [over[i] for i in chosen],
        "S, without the first token": [received[i][1:] for i in chosen],
        "H, entropy": [entropy[i] for i in chosen],
        "position": [np.arange(len(received[i]), dtype=np.float64) for i in chosen],
    }
    found: dict[str, dict[str, tuple[float, float, float, float]]] = {}
    for name, column in columns.items():
        found[name] = {}
        for target in gradients[0] if gradients else ():
            wanted = [g[target][len(g[target]) - len(c) :] for g, c in zip(gradients, column, strict=True)]
            pearson, spearman = correlations(column, wanted)
            mean, low, high = mean_interval(pearson, rng)
            found[name][target] = (mean, low, high, float(np.nanmean(spearman)))
    return Diagnosis(
        prompts=len(prompts),
        gradient_prompts=len(chosen),
        mismatches={"S": mismatch(entropy, received), "S over uniform": mismatch(entropy, over)},
        correlations=found,
        kinds=by_kind(named, signals, weights),
        positions=by_position(signals, weights),
    )


def check_predictor(predictor: LengthPredictor, backbone: Backbone) -> None:
    """Refuse a predictor that weighs no tokens of the last layer, and one of another LLM: InputError."""
    predictor.check_backbone(backbone)
    if predictor.layers:
        raise InputError(
            f"predictor {predictor.predictor!r} reads the last token of chosen layers and weighs no tokens; "
            "name one that pools"
        )
    if predictor.pooling.pooling == "max":
        raise InputError(f"predictor {predictor.predictor!r} pools by max and has no token weights")


def render(one: Diagnosis, predictor: str) -> str:
    """The tables."""
    lines = [f"{one.prompts} prompts", "", "entropy and attention at the 60th percentile, shares of tokens"]
    lines.append(
        f"  {'':18}{'high H, low S':>16}{'low H, high S':>16}{'of the high H':>16}{'of the low H':>16}"
    )
    for name, found in one.mismatches.items():
        cells = (found.high_low, found.low_high, found.given_high, found.given_low)
        lines.append(f"  {name:18}" + "".join(f"{value:>16.2%}" for value in cells))
    first = next(iter(one.mismatches.values()))
    cells = (
        first.independent_high_low,
        first.independent_low_high,
        first.independent_given_high,
        first.independent_given_low,
    )
    lines.append(f"  {'if independent':18}" + "".join(f"{value:>16.2%}" for value in cells))
    lines.append(f"  {'the paper':18}" + "".join(f"{value:>16.2%}" for value in PAPER_MISMATCH))
    lines += ["", f"Pearson's r with the gradient in the input embeddings (L2 norm), mean over "
              f"{one.gradient_prompts} prompts [95%], and Spearman's rho"]  # fmt: skip
    targets = list(next(iter(one.correlations.values()), {}))
    lines.append(f"  {'':28}" + "".join(f"{'of the ' + target:>34}" for target in targets))
    for name, by_target in one.correlations.items():
        cells_text = [
            f"{r:+.3f} [{low:+.3f}, {high:+.3f}] {rho:+.3f}" for r, low, high, rho in by_target.values()
        ]
        lines.append(f"  {name:28}" + "".join(f"{text:>34}" for text in cells_text))
    lines.append(f"  the paper: {PAPER_CORRELATION} (it does not say of what the gradient is)")
    lines += [
        "",
        "which tokens: shares of a prompt's tokens, of S, of the weight; S over uniform attention; H, nats",
    ]
    lines.append(f"  {'':20}{'tokens':>9}{'S':>9}{predictor:>9}{'S/uniform':>11}{'H':>7}")
    for kind, row in one.kinds.items():
        lines.append(
            f"  {kind:20}{row['tokens']:>9.1%}{row['attention']:>9.1%}{row['weight']:>9.1%}"
            f"{row['over_uniform']:>11.2f}{row['entropy']:>7.2f}"
        )
    lines += ["", "by tenth of the prompt"]
    for title, key in (("S", "attention"), ("S if uniform", "uniform"), (predictor, "weight")):
        lines.append(f"  {title:20}" + "".join(f"{share:>7.1%}" for share in one.positions[key]))
    return "\n".join(lines)


def as_json(one: Diagnosis, **facts: Any) -> dict[str, Any]:
    """Everything, with the facts of the run."""
    return {**facts, **dataclasses.asdict(one)}


def draw(one: Diagnosis, predictor: str, folder: Path) -> list[Path]:
    """`diagnosis.png` and `.svg`: shares by kind of token, and by place in the prompt."""
    with plot_style():
        figure, (above, below) = new_figure(rows=2, height=2.1)
        rows = np.arange(len(one.kinds))
        series = (
            ("tokens", "tokens", GREY),
            ("attention", "attention received", ORANGE),
            ("weight", predictor, BLUE),
        )
        for k, (key, title, colour) in enumerate(series):
            of_kind = [100 * row[key] for row in one.kinds.values()]
            above.barh(rows + (k - 1) * 0.27, of_kind, 0.27, color=colour, label=title)
        above.set(yticks=rows, yticklabels=list(one.kinds), xlabel="share (%)")
        above.invert_yaxis()
        above.grid(axis="y", visible=False)
        # Above the axes, where it hides no bar.
        above.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, handlelength=1.5)
        tenths = 10 * (np.arange(len(one.positions["attention"])) + 0.5)
        drawn = []
        for key, title, colour, dash, marker in (
            ("uniform", "attention, if uniform", GREY, DOTTED, "s"),
            ("attention", "attention received", ORANGE, "-", "o"),
            ("weight", predictor, BLUE, DASHED, "^"),
        ):
            shares = 100 * np.array(one.positions[key])
            drawn.append(shares)
            below.plot(tenths, shares, linestyle=dash, color=colour, marker=marker, label=title)
        every = np.concatenate(drawn)
        log_axis(below, "y", float(every[every > 0].min()), float(every.max()))
        below.set(xlabel="place in the prompt (%)", ylabel="share (%)", xlim=(0, 100))
        below.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        return save_figure(figure, folder, "diagnosis")
