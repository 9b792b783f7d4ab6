"""The output files of the ``visualize`` commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sot_base.errors import UsageError

__all__ = ["check_figure", "check_outputs", "is_page"]

PAGE_SUFFIXES = (".html", ".htm")
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")


def is_page(path: Path) -> bool:
    """Whether a file is an HTML page, by its suffix."""
    return path.suffix.lower() in PAGE_SUFFIXES


def check_outputs(names: Sequence[str], figures_only: bool) -> list[Path]:
    """The paths of ``--output``.

    Args:
        names: As given.
        figures_only: Whether pages are refused, as with ``--check``.

    Raises:
        UsageError: for an unknown suffix, or a page where a figure is needed.
    """
    paths = [Path(name) for name in names]
    for path in paths:
        if figures_only and is_page(path):
            raise UsageError(f"--check draws curves, not a page: --output {path}; give .png, .svg or .pdf")
        if not is_page(path) and path.suffix.lower() not in FIGURE_SUFFIXES:
            raise UsageError(f"unknown format: --output {path}; give .html, .png, .svg or .pdf")
    return paths


def check_figure(option: str, name: str | None) -> None:
    """Check the suffix of a figure before anything is computed for it.

    Raises:
        UsageError: for an unknown one.
    """
    if name is not None and Path(name).suffix.lower() not in FIGURE_SUFFIXES:
        raise UsageError(f"unknown format: {option} {name}; give .png, .svg or .pdf")
