"""Helpers of all figures: no display is needed, fonts for any script, files written atomically."""

from __future__ import annotations

import contextlib
import io
import logging
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DPI", "fonts_for", "new_figure", "png_bytes", "quiet_glyphs", "save_figure"]

logger = logging.getLogger(__name__)

DPI = 120
SCRIPTS = {
    "CJK": "CJK",
    "HIRAGANA": "CJK",
    "KATAKANA": "CJK",
    "HANGUL": "CJK",
}  # in names of characters: in names of fonts


def new_figure(width: float, height: float, is_free: bool = False) -> Figure:
    """A figure of this size in inches, with constrained layout unless ``is_free``.

    Raises:
        UsageError: if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("matplotlib is not installed: a figure needs it; pip install matplotlib") from error
    return Figure(figsize=(width, height), layout=None if is_free else "constrained", dpi=DPI)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure atomically, in the format of the suffix.

    Raises:
        UsageError: for a format that matplotlib does not know.
    """
    kind = Path(path).suffix.lstrip(".") or "png"
    if kind not in figure.canvas.get_supported_filetypes():
        raise UsageError(f"unknown picture format: {path}; use .png, .svg or .pdf")
    with atomic_file(path) as temporary, quiet_glyphs():
        figure.savefig(temporary, format=kind, dpi=DPI)


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG file in memory."""
    buffer = io.BytesIO()
    with quiet_glyphs():
        figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


@contextlib.contextmanager
def quiet_glyphs() -> Iterator[None]:
    """Silence matplotlib's warnings about missing glyphs, which :func:`fonts_for` has reported."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def fonts_for(text: str) -> list[str]:
    """Families of installed fonts that cover the characters of a text, matplotlib's default first."""
    from matplotlib import font_manager

    families = ["DejaVu Sans"]
    missing = {letter for letter in text if letter.isprintable()} - _letters(families[0])
    installed = sorted({entry.name for entry in font_manager.fontManager.ttflist})
    for script in sorted({unicodedata.name(letter, "").split(" ")[0] for letter in missing} - {""}):
        wanted = SCRIPTS.get(script, script.title())
        families += [name for name in installed if wanted in name.split() and name not in families][:1]
    missing = missing.difference(*map(_letters, families))
    if missing:
        logger.warning("no installed font has %s: shown as boxes in the figure", " ".join(sorted(missing)))
    return families


def _letters(family: str) -> set[str]:
    from matplotlib import font_manager

    return {chr(point) for point in font_manager.get_font(font_manager.findfont(family)).get_charmap()}
