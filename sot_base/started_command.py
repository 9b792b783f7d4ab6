"""Which command this process was started as."""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["is_command", "started_module"]

ROOT = Path(__file__).resolve().parents[1]
FLAGS = "[bBdEiIOPqsSuvx]*"  # of Python, without a value
PACKAGES = ("sot_fairseq", "sot_hf", "sot_probe", "sot_text", "sot_visual", "vision")


def is_command() -> bool:
    """Whether this process is a command of the toolkit."""
    return started_module().partition(".")[0] in PACKAGES


def started_module() -> str:
    """The module that Python was told to run, by its name or its file; empty for a file that is not the toolkit's.

    A program that runs another one, such as ``coverage run -m sot_hf.run_glue``, is what Python was told to run.
    """
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in ("-W", "-X"):
            next(words, None)
        elif re.fullmatch(rf"-{FLAGS}m", word):
            return next(words, "")
        elif not word.startswith("-"):
            path = Path(word).resolve()
            return ".".join(path.relative_to(ROOT).with_suffix("").parts) if ROOT in path.parents else ""
        elif re.match(rf"-{FLAGS}c", word):
            break
    return ""
