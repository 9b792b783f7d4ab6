"""Explanations as a figure: lines of coloured words, right to left for right-to-left scripts."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sot_text.visualization.explain import Explanation
from sot_text.visualization.render import colored_pieces, printable
from sot_visual.figures import DPI, fonts_for, new_figure, quiet_glyphs
from sot_visual.model_view import PART_NAMES
from sot_visual.scale import RIGHT, WRONG, hex_color

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MAX_ITEMS", "draw_items", "is_right_to_left"]

Piece = tuple[str, float | None, float]
MAX_ITEMS = 50  # of one figure
WIDTH, MARGIN, LABEL = 1080, 18, 145  # pixels: figure, margin around it, column of row names
LINE, GAP, SIZE = 24, 10, 10  # pixels: line, gap between items; font size in points


def is_right_to_left(text: str) -> bool:
    """Whether the first letter with a direction is written from right to left."""
    for letter in text:
        direction = unicodedata.bidirectional(letter)
        if direction in ("L", "R", "AL"):
            return direction != "L"
    return False


def in_visual_order(pieces: Sequence[Piece], right_to_left: bool) -> list[Piece]:
    """Pieces of a line in visual order, from left to right: Unicode's bidirectional algorithm at the level of words.

    Neighbouring words of one direction form a run; numbers and punctuation take the direction of their neighbours.
    """
    known = [_direction(text) for text, _, _ in pieces]
    resolved = []
    for place, direction in enumerate(known):
        before = next((d for d in reversed(known[:place]) if d is not None), right_to_left)
        after = next((d for d in known[place + 1 :] if d is not None), right_to_left)
        resolved.append(direction if direction is not None else before if before == after else right_to_left)
    runs = [
        [piece for piece, _ in group]
        for _, group in itertools.groupby(zip(pieces, resolved, strict=True), key=lambda pair: pair[1])
    ]
    flags = [flag for flag, _ in itertools.groupby(resolved)]
    runs = [run[::-1] if flag else run for run, flag in zip(runs, flags, strict=True)]
    return [piece for run in (runs[::-1] if right_to_left else runs) for piece in run]


def _direction(text: str) -> bool | None:
    """Whether a piece runs from right to left, None if it has no letter with a direction."""
    strong = [letter for letter in text if unicodedata.bidirectional(letter) in ("L", "R", "AL")]
    return is_right_to_left(text) if strong else None


def draw_items(items: Sequence[Explanation], title: str) -> Figure:
    """Draw items one below the other: the prediction, and a line of coloured words for each part of the logit.

    Args:
        items: At most :data:`MAX_ITEMS` items.
        title: Title of the figure.
    """
    letters = "".join(letter for item in items for letter in "".join((*item.texts, item.prediction, item.truth or "")))
    options = {"fontsize": SIZE, "family": fonts_for(printable(letters)), "va": "center"}
    canvas = _Canvas(options)
    canvas.say(title, MARGIN, weight="bold")
    canvas.legend()
    canvas.y += LINE + GAP
    for item in items:
        marks = {True: ("right", RIGHT), False: (f"wrong: {item.truth}", WRONG), None: ("", "black")}
        mark, color = marks[item.right]
        said = f"{item.prediction}  {mark}".strip()
        if item.without_words is not None:
            said += f"   (without the words: {item.without_words})"
        canvas.say(printable(said), MARGIN, color=color)
        canvas.y += LINE
        for part in item.scores:
            canvas.say(PART_NAMES[part], MARGIN, color="#555555")
            for number, text in enumerate(item.texts):
                pieces = list(colored_pieces(item, part, number)) if text.strip() else [("(empty)", None, 0.0)]
                canvas.words(pieces, is_right_to_left(text))
        canvas.y += GAP
    return canvas.figure()


class _Canvas:
    """Places words by their measured width, in pixels from the top left."""

    def __init__(self, options: dict[str, Any]) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.text import Text

        self.options, self.y = options, MARGIN + LINE / 2
        self.marks: list[tuple[float, float, str, dict[str, Any]]] = []
        self._probe = new_figure(1, 1, is_free=True)
        self._renderer = FigureCanvasAgg(self._probe).get_renderer()  # type: ignore[no-untyped-call]
        self._text = Text(figure=self._probe, **options)

    def width(self, text: str) -> float:
        """Width of a text in pixels, including blanks at its ends."""
        with quiet_glyphs():
            self._text.set_text(f"|{text}|")
            framed = self._text.get_window_extent(self._renderer).width
            self._text.set_text("||")
            return float(framed - self._text.get_window_extent(self._renderer).width)

    def say(self, text: str, x: float, **options: Any) -> None:
        """Put a text on the current line."""
        self.marks.append((x, self.y, text, options))

    def legend(self) -> None:
        """Put the colour legend at the right end of the current line."""
        right: float = WIDTH - MARGIN
        for index, name in enumerate(("strong", "", "", "", "weak")):
            text = f" {name or '      '} "
            right -= self.width(text) + 2
            self.say(text, right, bbox=_box(1 - index / 4))

    def words(self, pieces: Sequence[Piece], right_to_left: bool) -> None:
        """Put coloured words on the current line, with line breaks, and start a new line."""
        room = WIDTH - 2 * MARGIN - LABEL
        line: list[Piece] = []
        used = 0.0
        for text, strength, score in pieces:
            shown = printable(text)
            width = self._advance(shown, strength)
            if used and strength is not None and used + width > room:
                self._line(line, right_to_left)
                line, used = [], 0.0
            line.append((shown, strength, score))
            used += width
        self._line(line, right_to_left)

    def _line(self, pieces: Sequence[Piece], right_to_left: bool) -> None:
        ordered = in_visual_order(pieces, right_to_left)
        widths = [self._advance(text, strength) for text, strength, _ in ordered]
        x = WIDTH - MARGIN - sum(widths) if right_to_left else MARGIN + LABEL
        for (text, strength, _), width in zip(ordered, widths, strict=True):
            if text.strip():
                self.say(text, x, **({} if strength is None else {"bbox": _box(strength)}))
            x += width
        self.y += LINE

    def _advance(self, text: str, strength: float | None) -> float:
        return self.width(text) + (3 if strength is not None else 0)

    def figure(self) -> Figure:
        """The figure."""
        height = self.y + MARGIN
        figure = new_figure(WIDTH / DPI, height / DPI, is_free=True)
        for x, y, text, options in self.marks:
            figure.text(x / WIDTH, 1 - y / height, text, parse_math=False, **{**self.options, **options})
        return figure


def _box(strength: float) -> dict[str, Any]:
    return {"facecolor": hex_color(strength), "edgecolor": "none", "pad": 1.5}
