"""What kind of token is it: template, punctuation, digits, function word, content word?

Words are found in the text that the tokens make up, so that a piece of a word is of its word's kind.
"""

import re
from collections.abc import Sequence

from predictor.backbone import Backbone

KINDS = (
    "first token",
    "template, opening",
    "template, closing",
    "last token",
    "white space",
    "punctuation",
    "digits",
    "function words",
    "content words",
)
WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# English words that carry grammar more than content: articles, pronouns, prepositions, conjunctions, auxiliaries.
FUNCTION_WORDS = frozenset(
    WORD.findall("""
    a about above across after again against all along also although am among an and another any are around as
    at be because been before being below between both but by can could did do does doing done down during each
    either else enough every few for from had has have having he her here hers herself him himself his how i if
    in instead into is it its itself just least less many may me might mine more most much must my myself neither
    no nor not of off on once one only onto or other our ours ourselves out over own per same shall she should
    since so some such than that the their theirs them themselves then there these they this those though through
    to too toward towards under until up upon us very was we were what when where whether which while who whom
    whose why will with within without would yet you your yours yourself
    """)
)


def template_ends(backbone: Backbone) -> tuple[int, int]:
    """How many tokens the chat template puts before and after every prompt, the opening of the answer included."""
    first, second = backbone.encode("a"), backbone.encode("0 b")
    most = min(len(first), len(second))
    opening = next((k for k in range(most) if first[k] != second[k]), most)
    closing = next((k for k in range(most) if first[-k - 1] != second[-k - 1]), most)
    return opening, min(closing, most - opening)


def kinds(pieces: Sequence[str], opening: int, closing: int) -> list[str]:
    """The kind of each token of one prompt, one of `KINDS`; `opening` and `closing` as `template_ends` has them."""
    words: dict[int, str] = {}
    for match in WORD.finditer("".join(pieces)):
        words.update(dict.fromkeys(range(match.start(), match.end()), match[0].lower()))
    found, start = [], 0
    for index, piece in enumerate(pieces):
        left = len(pieces) - index
        if index == 0:
            kind = "first token"
        elif left == 1:
            kind = "last token"
        elif index < opening:
            kind = "template, opening"
        elif left <= closing:
            kind = "template, closing"
        else:
            kind = _kind(piece, start, words)
        found.append(kind)
        start += len(piece)
    return found


def _kind(piece: str, start: int, words: dict[int, str]) -> str:
    if not piece.strip():
        return "white space"
    word = next((words[k] for k in range(start, start + len(piece)) if k in words), None)
    if word is not None:
        return "function words" if word in FUNCTION_WORDS else "content words"
    return "digits" if any(char.isdigit() for char in piece) else "punctuation"
