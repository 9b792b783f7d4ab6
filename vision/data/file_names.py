"""What the names of files say: images by their endings, hidden files, and those that are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from vision.data.images import ENDINGS

__all__ = ["count_endings", "is_hidden", "is_image_name"]


def is_image_name(name: str) -> bool:
    """Whether a file counts as an image by its name: one of the endings that Pillow reads."""
    return name.lower().endswith(ENDINGS)


def is_hidden(path: str) -> bool:
    """Whether a path lies in a folder that data sets do not count, or is such a file itself."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(path).parts)


def count_endings(paths: Iterable[str]) -> str:
    """How many files have which ending: ``.heic 10, .txt 2``."""
    counts = Counter(PurePosixPath(path).suffix.lower() or "no ending" for path in paths)
    return ", ".join(f"{ending} {count}" for ending, count in counts.most_common())
