"""Why a prompt got its estimate: its tokens as they are written, their signals, their weight, the distribution.

The pieces of a prompt are the tokenizer's own spans of the text. A character that several tokens share (a byte
level vocabulary cuts rare ones) is shown byte by byte, as in `‹E2›‹96›`: no token holds it alone.
"""

import codecs
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.backbone import Backbone
from predictor.checkpoint import LengthPredictor
from predictor.features import of
from predictor.head import Floats
from predictor.signals import iter_signals
from traces.errors import InputError

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class Explanation:
    """One prompt of N tokens under one predictor.

    tokens: N pieces of the text that the LLM reads, chat template included; entropy: (N,) nats; received: (N,)
    S of eq. 1, sums to one; weight: (N,) e of the pooling, sums to one, or None for `max`, which has none.
    probabilities: (K,) over the length bins between `edges` (K + 1,) tokens; mean: tokens; quantiles: level ->
    tokens, with the checkpoint's conformal correction where it has one (`conformal`), which leaves out levels that it
    had too few prompts for; backbone, predictor, summary: names and settings.
    """

    tokens: tuple[str, ...]
    entropy: Floats
    received: Floats
    weight: Floats | None
    probabilities: Floats
    edges: Floats
    mean: float
    quantiles: dict[float, float]
    conformal: bool
    backbone: str
    predictor: str
    summary: str


def explain(backbone: Backbone, predictor: LengthPredictor, prompt: str) -> Explanation:
    """Read one prompt and estimate its answer's length.

    Raises InputError for an empty or too long prompt, and for another LLM than the predictor's.
    """
    if not prompt:
        raise InputError("the prompt is empty; give some text to explain")
    predictor.check_backbone(backbone)
    ids = backbone.encode(prompt)
    ((_, found),) = iter_signals(backbone.model, [ids], layers=predictor.layers)
    signals = of(found)
    table = predictor.probabilities([signals], [prompt])
    at = predictor.quantiles(table)
    return Explanation(
        tokens=tuple(pieces(backbone, prompt)),
        entropy=signals.entropy.double().numpy(),
        received=signals.received.double().numpy(),
        weight=predictor.weights(signals, prompt),
        probabilities=table[0],
        edges=np.array(predictor.bins.edges),
        mean=float(table[0] @ predictor.bins.centres),
        quantiles={q: float(at[q][0]) for q in LEVELS if q in at},
        conformal=predictor.conformal is not None,
        backbone=backbone.name,
        predictor=predictor.predictor,
        summary=predictor.summary(),
    )


def pieces(backbone: Backbone, prompt: str) -> list[str]:
    """The text of each token of `backbone.encode(prompt)`; together they are the text that the LLM reads.

    Of a byte-level vocabulary a token is its own bytes. Of another it is its span of the text: what the tokenizer
    drops between two tokens belongs to the later one, and tokens that share a character are shown by their names.
    """
    tokenizer = backbone.tokenizer
    ids = backbone.encode(prompt)
    if not tokenizer.is_fast:
        return [tokenizer.decode([i]) for i in ids]
    names = tokenizer.convert_ids_to_tokens(ids)
    if "ByteLevel" in repr(tokenizer.backend_tokenizer.decoder):
        added = tokenizer.get_added_vocab()
        return [
            _bytes_of(name) if name not in added and _ALPHABET.keys() >= {*name} else name for name in names
        ]
    text, options = backbone.text_of(prompt)
    spans: list[tuple[int, int]] = tokenizer(text, return_offsets_mapping=True, **options)["offset_mapping"]
    found, end = [], 0
    for name, span, split in zip(names, spans, _shared(spans), strict=True):
        if span[0] == span[1]:
            found.append(name)  # a special token that the text does not spell out
        elif split:
            found.append(text[end : span[0]] + re.sub(r"<0x(..)>|(.+)", r"‹\1\2›", name))
        else:
            found.append(text[min(end, span[0]) : span[1]])
        end = max(end, span[1])
    return found


def _shared(spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Whether each span has a character in common with the span before or after it."""
    meets = [a[1] > b[0] and b[0] < b[1] for a, b in itertools.pairwise(spans)]
    return [left or right for left, right in zip([False, *meets], [*meets, False], strict=True)]


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level vocabularies (GPT-2's and its heirs) write the 256 bytes.

    Printable ones of Latin-1 stand for themselves, the others for 256, 257, ... in order.
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + k): b for k, b in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _show_bytes(error: Any) -> tuple[str, int]:
    return "".join(f"‹{b:02X}›" for b in error.object[error.start : error.end]), error.end


codecs.register_error("estp.bytes", _show_bytes)


def _bytes_of(name: str) -> str:
    """A byte-level vocabulary entry as text, with `‹E2›` for each byte of a character that it does not hold whole."""
    return bytes(_ALPHABET[char] for char in name).decode("utf-8", "estp.bytes")


def strength(values: Floats, *, logarithmic: bool) -> Floats:
    """(N,) in [0, 1], for colours: values over the largest, or the top three decades of their logarithm."""
    largest = values.max()
    if not largest > 0:
        return np.zeros_like(values)
    share = values / largest
    return np.asarray(1 + np.log10(np.maximum(share, 1e-3)) / 3 if logarithmic else np.maximum(share, 0))


@dataclass(frozen=True, eq=False)
class Measure:
    """One thing to colour tokens by: values (N,), their strength (N,) in [0, 1], and what they are."""

    name: str
    meaning: str
    values: Floats
    strength: Floats


def measures(one: Explanation) -> list[Measure]:
    """Entropy, attention received and, where there is one, the pooling weight."""
    found = [
        Measure(
            "entropy",
            "nats, of the next token; colour: 0 to the largest",
            one.entropy,
            strength(one.entropy, logarithmic=False),
        ),
        Measure(
            "attention received",
            "share of all attention; colour: three decades",
            one.received,
            strength(one.received, logarithmic=True),
        ),
    ]
    if one.weight is not None:
        found.append(
            Measure(
                f"{one.predictor} weight",
                "share of the pooled vector; colour: three decades",
                one.weight,
                strength(one.weight, logarithmic=True),
            )
        )
    return found
