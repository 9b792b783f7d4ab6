"""Explanations as an HTML page, and coloured in the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from html import escape

from sot_text.visualization.explain import Explanation
from sot_visual.model_view import PART_NAMES
from sot_visual.page import Cell, make_page
from sot_visual.scale import STRONG, WEAK, hex_color, mix_colors, to_strength

__all__ = ["colored_pieces", "as_page", "as_terminal", "printable"]

ISOLATE, END_ISOLATE = "\u2068", "\u2069"  # isolate a text from the direction of the rest of the line
FLIPS = {chr(point) for point in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}  # direction overrides


def printable(text: str) -> str:
    """The text with control characters and direction overrides replaced by visible symbols, safe for a terminal."""
    return "".join(
        chr(0x2400 + ord(c)) if ord(c) < 0x20 else "\ufffd" if unicodedata.category(c) == "Cc" or c in FLIPS else c
        for c in text
    )


def colored_pieces(item: Explanation, part: str, number: int) -> Iterator[tuple[str, float | None, float]]:
    """Pieces of one of the texts in order: text, strength in [0, 1] and score; strength None between the words."""
    text, end = item.texts[number], 0
    strengths = to_strength(item.scores[part])
    for word, strength, score in zip(item.words, strengths, item.scores[part], strict=True):
        if word.text != number:
            continue
        if word.start > end:
            yield text[end : word.start], None, 0.0
        yield text[word.start : word.end], float(strength), score
        end = word.end
    if end < len(text):
        yield text[end:], None, 0.0


def as_page(items: Sequence[Explanation], title: str, method: str) -> str:
    """The HTML page of all items."""
    gradient = f"linear-gradient(to right, rgb{WEAK}, rgb{STRONG})"
    note = (
        f'<p class="note">Method {escape(method)}. Colour of a word: weak <span class="legend" '
        f'style="background: {gradient}"></span> strong, from the least to the most that a word of the row adds to the '
        "logit of the explained class. ClassT: the class token's part of the logit, WordT: that of the word tokens. "
        "Hover over a word to see its score.</p>"
    )
    headings = ["#", "prediction", "label", "explained class", "its probability", "without the words", "text"]
    if not any(item.explained for item in items):
        headings[3], headings[4] = "explained", "value"
    return make_page(printable(title), note, headings, [_cells(number, item) for number, item in enumerate(items, 1)])


def _cells(number: int, item: Explanation) -> list[Cell]:
    style = {True: "right", False: "wrong", None: ""}[item.right]
    mark = {True: " ✓", False: " ✗", None: ""}[item.right]
    rows = "".join(
        f'<div class="row"><span class="part">{PART_NAMES[part]}</span>{_texts(item, part)}</div>'
        for part in item.scores
    )
    return [
        Cell.text(str(number)),
        Cell.text(printable(item.prediction) + mark, style),
        Cell.text("" if item.truth is None else printable(item.truth)),
        Cell.text(printable(item.explained)),
        Cell.text(f"{item.probability:.3f}"),
        Cell.text("" if item.without_words is None else printable(item.without_words)),
        Cell(rows, printable(" ".join(item.texts))),
    ]


def _texts(item: Explanation, part: str) -> str:
    texts = []
    for number, text in enumerate(item.texts):
        pieces = "".join(
            escape(printable(piece))
            if strength is None
            else f'<span class="word" style="background: {hex_color(strength)}" title="{score:.4g}">'
            f"{escape(printable(piece))}</span>"
            for piece, strength, score in colored_pieces(item, part, number)
        )
        texts.append(f'<div dir="auto">{pieces if text.strip() else "<i>(empty)</i>"}</div>')
    return f'<div class="text">{"".join(texts)}</div>'


def as_terminal(item: Explanation) -> str:
    """The item with ANSI escapes, for terminals with 24-bit colours."""
    mark = {True: " (right)", False: f" (wrong, it is {item.truth})", None: ""}[item.right]
    what = f"{item.prediction}{mark}"
    if item.explained:
        what += f"; {item.explained}: {item.probability:.3f}"
    if item.without_words is not None:
        what += f"; without the words: {item.without_words}"
    lines = [printable(what)]
    for part in item.scores:
        texts = " | ".join(
            ISOLATE
            + ("".join(map(_ansi, colored_pieces(item, part, number))) if text.strip() else "(empty)")
            + END_ISOLATE
            for number, text in enumerate(item.texts)
        )
        lines.append(f"  {PART_NAMES[part]:<15}{texts}")
    return "\n".join(lines) + "\n"


def _ansi(piece: tuple[str, float | None, float]) -> str:
    text, strength, _ = piece
    if strength is None:
        return printable(text)
    red, green, blue = mix_colors(strength)
    return f"\x1b[30;48;2;{red};{green};{blue}m{printable(text)}\x1b[0m"
