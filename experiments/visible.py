"""Text of tokens made visible: white space, control and direction marks cannot hide or act on a terminal."""

from __future__ import annotations

import unicodedata

NEWLINE = "⏎"


def visible(piece: str) -> str:
    """A token's text on one line: spaces stay, a line end is ⏎, what has no ink of its own is named."""
    shown = "".join(map(_shown, piece))
    # A combining mark would sit on the neighbour's last letter.
    return f"◌{shown}" if shown and unicodedata.category(shown[0]) in ("Mn", "Me") else shown


def _shown(char: str) -> str:
    if char in " \u0020":
        return char
    if char == "\n":
        return NEWLINE
    if char == "\t":
        return "⇥"
    if ord(char) < 0x20:
        return chr(0x2400 + ord(char))
    if unicodedata.category(char)[0] in "CZ":
        return f"‹U+{ord(char):04X}›"
    return char
