"""``estp trace describe`` and ``fit``: what a trace is like."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, arg

from experiments.commands.trace_source import Source

if TYPE_CHECKING:
    from traces.families import Fit as FamilyFit
    from traces.families import Parameter


@dataclass(frozen=True)
class Describe:
    """Counts, rate, burstiness, lengths, tails and correlation of a trace; with --out a picture too."""

    source: Annotated[OmitArgPrefixes[Source], arg(name="")]
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder for trace.png, trace.svg and description.json."""
    json: Annotated[FlagCreatePairsOff[bool], arg(help_behavior_hint="")] = False
    """Print the description as JSON."""

    def run(self) -> int:
        """Print the description; exit code 0."""
        from traces.describe import describe

        trace = self.source.read()
        facts = {**describe(trace), "metadata": trace.metadata}
        text = json.dumps(facts, indent=2)
        print(text if self.json else "\n".join(_lines(facts)))
        if self.out is not None:
            from experiments.report_files import check_folder
            from experiments.style import plot_style, save_figure
            from experiments.trace_plots import trace_picture
            from traces.export import write_text

            check_folder(self.out)
            self.out.mkdir(parents=True, exist_ok=True)
            with plot_style():
                save_figure(trace_picture(trace), self.out, "trace")
            write_text(text + "\n", self.out / "description.json")
        return 0


@dataclass(frozen=True)
class Fit:
    """Fit arrivals and lengths, with 95% intervals and goodness of fit, and print a synth specification."""

    source: Annotated[OmitArgPrefixes[Source], arg(name="")]
    seed: Annotated[int, arg(metavar="N")] = 0
    """Of the bootstrap behind the p-values."""
    json: Annotated[FlagCreatePairsOff[bool], arg(help_behavior_hint="")] = False
    """Print the fits as JSON."""

    def run(self) -> int:
        """Print the fits; exit code 0."""
        from traces.fit import fit

        fits = fit(self.source.read(), seed=self.seed)
        if self.json:
            print(json.dumps({**asdict(fits), "spec": fits.spec()}, indent=2))
            return 0
        for name, families in (("arrivals", fits.arrivals), ("prompt", fits.prompt), ("output", fits.output)):
            for family in families:
                print(f"{name:9} {_fitted(family)}")
            if name in fits.tails:
                print(f"{name:9} tail of the longest 10%: alpha {_shown(fits.tails[name])}")
        if fits.correlation is not None:
            print(f"{'both':9} correlation {_shown(fits.correlation)}")
        for note in fits.notes:
            print(f"note: {note}")
        print(f"\nestp trace synth OUT.parquet --spec '{fits.spec()}'")
        return 0


def _fitted(fit: FamilyFit) -> str:
    parameters = ", ".join(f"{name} {_shown(value)}" for name, value in fit.parameters.items())
    judged = "" if fit.p_value is None else f", p {fit.p_value:.2f}"
    return f"{fit.family:9} {parameters}; distance {fit.distance:.3f}{judged}, AIC {fit.aic:,.0f}"


def _shown(parameter: Parameter) -> str:
    return f"{parameter.value:.4g} [{parameter.low:.4g}, {parameter.high:.4g}]"


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"requests   {facts['requests']:,}"]
    if "span_s" in facts:
        rate = "all at once" if facts["rate"] is None else f"{facts['rate']:.4g} per second"
        lines.append(f"arrivals   {rate}, span {facts['span_s']:,.1f} s")
    elif facts["metadata"].get("arrivals") == "closed loop":
        lines.append("arrivals   a closed loop's: they follow from the answers (traces.closed_loop)")
    else:
        lines.append("arrivals   none recorded")
    if "gaps" in facts:
        gaps = facts["gaps"]
        lines.append(
            f"gaps       mean {gaps['mean_s']:.4g} s, CV {gaps['cv']:.2f} (Poisson 1), tied {gaps['tied']:.1%}"
        )
    for width, found in facts.get("windows", {}).items():
        lines.append(
            f"  in {width:6}  variance / mean of counts {found['dispersion']:.3g} (Poisson 1), "
            f"peak {found['peak']:.3g} x mean"
        )
    for name in ("prompt", "output"):
        lines += _length_lines(name, facts.get(f"{name}_tokens"))
    correlation = facts.get("correlation", {}).get("spearman")
    if correlation is not None:
        logs = facts["correlation"]["pearson_log"]
        lines.append(f"together   prompt and output: Spearman {correlation:.3f}, Pearson of logs {logs:.3f}")
    if "sessions" in facts:
        found = facts["sessions"]
        lines.append(
            f"sessions   {found['sessions']:,}, {found['mean_turns']:.2f} turns on average, longest {found['longest']}"
        )
    if "prefixes" in facts:
        lines.append(f"prefixes   {facts['prefixes']['repeated']:.1%} seen before (hit by an endless cache)")
    dropped = facts["metadata"].get("dropped")
    if dropped:
        lines.append(f"left out   {dropped['count']:,} rows")
    return lines


def _length_lines(name: str, found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    quantiles = ", ".join(f"{key} {found[key]:,.0f}" for key in ("p50", "p90", "p99", "p99.9", "max"))
    tail = "" if found["tail_index"] is None else f", tail index {found['tail_index']:.2f}"
    return [
        f"{name:10} {found['total']:,} tokens, mean {found['mean']:,.1f}, {quantiles}",
        f"           the longest 1% hold {found['share_of_longest_1pct']:.1%} of them{tail}",
    ]
