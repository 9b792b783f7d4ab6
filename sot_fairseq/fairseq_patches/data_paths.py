"""Paths of data that hold a colon."""

from __future__ import annotations

import os

from fairseq import utils

__all__ = ["take_paths_with_colons"]


def take_paths_with_colons() -> None:
    """Leave a path that exists whole: fairseq splits every path of data at ``:``, into shards of one for each epoch."""
    stock = utils.split_paths
    if getattr(stock, "leaves_paths", False):
        return

    def split_paths(paths: str, separator: str = os.pathsep) -> list[str]:
        found: list[str] = [paths] if os.path.exists(paths) else stock(paths, separator)
        return found

    split_paths.leaves_paths = True  # type: ignore[attr-defined]
    utils.split_paths = split_paths
