"""What all pictures share: a figure without a display, fonts for any script, and writing a file whole."""

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
SCRIPTS = {"CJK": "CJK", "HIRAGANA": "CJK", "KATAKANA": "CJK", "HANGUL": "CJK"}  # of character names: of fonts' names


def new_figure(width: float, height: float, is_free: bool = False) -> Figure:
    """A figure of that size in inches, its axes arranged by matplotlib unless it is free.

    Raises:
        UsageError: if matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("matplotlib is missing: a picture needs it; pip install matplotlib") from error
    return Figure(figsize=(width, height), layout=None if is_free else "constrained", dpi=DPI)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure; the suffix says the format, and the file appears whole or not at all.

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
    """Without a warning of matplotlib for each letter that has no glyph; :func:`fonts_for` has named them all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def fonts_for(text: str) -> list[str]:
    """Families of installed fonts that together have the characters of a text, matplotlib's own first."""
    from matplotlib import font_manager

    families = ["DejaVu Sans"]
    missing = {letter for letter in text if letter.isprintable()} - _letters(families[0])
    installed = sorted({entry.name for entry in font_manager.fontManager.ttflist})
    for script in sorted({unicodedata.name(letter, "").split(" ")[0] for letter in missing} - {""}):
        wanted = SCRIPTS.get(script, script.title())
        families += [name for name in installed if wanted in name.split() and name not in families][:1]
    missing = missing.difference(*map(_letters, families))
    if missing:
        logger.warning("no installed font has %s: shown as boxes in the picture", " ".join(sorted(missing)))
    return families


def _letters(family: str) -> set[str]:
    from matplotlib import font_manager

    return {chr(point) for point in font_manager.get_font(font_manager.findfont(family)).get_charmap()}
