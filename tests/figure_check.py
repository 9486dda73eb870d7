"""What makes a figure legible, measured on the figure as it is saved."""

from __future__ import annotations

from itertools import combinations
from typing import Any
from unittest.mock import patch

from matplotlib.figure import Figure
from matplotlib.text import Text

from experiments.style import COLUMN_WIDTH_IN, PNG_DPI

# Points, at the width that the figure is made for.
LEAST_PT = 7.0


def check_legible(figure: Figure, width_in: float = COLUMN_WIDTH_IN) -> None:
    """Assert the width, letters of a fair size, a name on every axis, and that no text is cut or covers another."""
    figure.set_dpi(PNG_DPI)
    texts = drawn_texts(figure)
    assert figure.get_figwidth() == width_in
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    for text, (words, box) in zip(texts, boxes, strict=True):
        assert text.get_fontsize() >= LEAST_PT, (words, text.get_fontsize())
        assert "$" not in words, f"{words} has letters smaller than its size"
        assert min(box.x0, box.y0) >= -2, (words, box)
        assert box.x1 <= figure.bbox.x1 + 2, (words, box)
        assert box.y1 <= figure.bbox.y1 + 2, (words, box)
    for (one, first), (other, second) in combinations(boxes, 2):
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        along = min(first.y1, second.y1) - max(first.y0, second.y0)
        # Pixels: letters do not fill the height of their box.
        assert across <= 2 or along <= 5, (one, first, other, second)


def drawn_texts(figure: Figure) -> list[Text]:
    """The texts that are drawn; an axis has more ticks than it shows."""
    drawn: list[Text] = []
    original = Text.draw

    def draw(self: Text, *arguments: Any, **keys: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            drawn.append(self)
        original(self, *arguments, **keys)

    with patch.object(Text, "draw", draw):
        figure.draw_without_rendering()
    return drawn
