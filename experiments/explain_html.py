"""An explained prompt as one HTML page: no script, no network, light and dark."""

from __future__ import annotations

from jinja2 import Environment, StrictUndefined

from experiments.visible import NEWLINE, visible
from predictor.explain import Explanation, Measure, measures

# The ground is blue on light pages and amber on dark ones, by lightness alone; letters stay legible on all of it.
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ one.predictor }}: about {{ '%.0f'|format(one.mean) }} tokens</title>
<style>
:root { color-scheme: light dark; --page: #fff; --ink: #111; --soft: #595959; --ground: #56b4e9; --bar: #0072b2; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181c; --ink: #f2f2f2; --soft: #b0b0b0; --ground: #9a5f00; --bar: #e69f00; }
}
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
.soft { color: var(--soft); font-size: .85rem; }
.tokens { font: .9rem/1.9 ui-monospace, monospace; overflow-wrap: anywhere; }
.tokens span { white-space: pre-wrap; padding: .15rem 0; border-radius: .15rem; outline: 1px solid var(--page);
  background: color-mix(in srgb, var(--ground) calc(var(--s) * 100%), transparent); }
.key span { display: inline-block; width: 1.6rem; height: .8rem; vertical-align: middle;
  background: color-mix(in srgb, var(--ground) calc(var(--s) * 100%), transparent); }
table { border-collapse: collapse; font-size: .85rem; width: 100%; } td, th { padding: 0 .6rem 0 0; }
th { text-align: right; font-weight: normal; white-space: nowrap; } td.share { text-align: right; }
td.bar { width: 80%; } td.bar div { background: var(--bar); height: .8rem; }
</style>
<h1>About {{ '%.0f'|format(one.mean) }} tokens</h1>
<p>The answer of <code>{{ one.backbone }}</code> to this prompt, as predicted by <code>{{ one.predictor }}</code>.
Quantiles, tokens{{ ', with conformal correction' if one.conformal else '' }}:
{% for level, value in one.quantiles.items() -%}
{{ '%g'|format(level * 100) }}% {{ '%.0f'|format(value) }}{{ ', ' if not loop.last else '.' }}
{%- endfor %}</p>
<table aria-label="predicted distribution of the answer's length">
{% for low, high, share, part in bins %}<tr><th scope="row">{{ low }} to {{ high }} tokens</th>
<td class="share">{{ '%.1f'|format(share * 100) }}%</td>
<td class="bar"><div style="width: {{ '%.2f'|format(part * 100) }}%"></div></td></tr>
{% endfor %}</table>
{% for measure, lines in blocks %}<h2>{{ measure.name }}</h2>
<p class="soft key">{{ measure.meaning }}; largest {{ '%.3g'|format(measure.values.max()) }}
{% for s in (0, 0.25, 0.5, 0.75, 1) %}<span style="--s: {{ s }}"></span>{% endfor %}</p>
<div class="tokens">
{% for line in lines %}<div dir="auto">{% for text, strength, hint in line -%}
<span style="--s: {{ '%.3f'|format(strength) }}" title="{{ hint }}">{{ text }}</span>{% endfor %}</div>
{% endfor %}</div>
{% endfor %}<p class="soft">{{ one.summary }}</p>
</html>
"""


def page(one: Explanation) -> str:
    """The whole page; everything that comes from the prompt, the model or the predictor is escaped."""
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(PAGE)
    shown = measures(one)
    top = one.probabilities.max()
    bins = [
        (f"{low:.0f}", f"{high:.0f}", share, share / top)
        for low, high, share in zip(one.edges, one.edges[1:], one.probabilities, strict=False)
    ]
    return template.render(one=one, bins=bins, blocks=[(m, _lines(m, one, shown)) for m in shown]) + "\n"


def _lines(measure: Measure, one: Explanation, shown: list[Measure]) -> list[list[tuple[str, float, str]]]:
    """Tokens by line, each its text, strength and hint: a line of its own finds its own writing direction."""
    lines: list[list[tuple[str, float, str]]] = [[]]
    for i, token in enumerate(one.tokens):
        hint = f"token {i}: " + ", ".join(f"{m.name} {m.values[i]:.3g}" for m in shown)
        lines[-1].append((visible(token), float(measure.strength[i]), hint))
        if visible(token).endswith(NEWLINE):
            lines.append([])
    return [line for line in lines if line]
