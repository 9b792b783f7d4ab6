"""The help of a command, printed before anything is imported that takes seconds: torch, transformers, timm, fairseq."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from sot_base.errors import write_utf8

__all__ = ["asked_for_help", "show_help"]

ROOT = Path(__file__).resolve().parents[1]
OTHERS_PARSERS = ("sot_fairseq.train", "sot_hf.run_glue")  # fairseq's and transformers', which need all there is
PACKAGES = ("sot_fairseq", "sot_hf", "sot_probe", "sot_text", "sot_visual", "vision")


def asked_for_help() -> bool:
    """Whether this process is a command of the toolkit that was started for its help, and ends when it is printed.

    Packages whose import registers something, with fairseq, transformers or timm, leave that out in such a process.
    """
    words = sys.argv[1:]
    words = words[: words.index("--")] if "--" in words else words
    module = _started_module()
    return bool({"-h", "--help"}.intersection(words)) and _is_ours(module) and module not in OTHERS_PARSERS


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def _started_module() -> str:
    """The module that Python was told to run, by its name or its file; empty for a file that is not the toolkit's."""
    words = sys.orig_argv
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    path = Path(sys.argv[0]).resolve()
    return ".".join(path.relative_to(ROOT).with_suffix("").parts) if sys.argv[0] and ROOT in path.parents else ""


def show_help(parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Print a command's help and end the process, if that is what it was started for.

    Args:
        parser: Makes the command's parser.
    """
    if asked_for_help():
        write_utf8()
        parser().print_help()
        sys.stdout.flush()
        sys.exit(0)
