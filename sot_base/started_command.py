"""Which command this process was started as."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["is_command", "started_module"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("sot_fairseq", "sot_hf", "sot_probe", "sot_text", "sot_visual", "vision")


def is_command() -> bool:
    """Whether this process is a command of the toolkit."""
    return started_module().partition(".")[0] in PACKAGES


def started_module() -> str:
    """The module that Python was told to run, by its name or its file; empty for a file that is not the toolkit's."""
    words = sys.orig_argv
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    path = Path(sys.argv[0]).resolve()
    return ".".join(path.relative_to(ROOT).with_suffix("").parts) if sys.argv[0] and ROOT in path.parents else ""
