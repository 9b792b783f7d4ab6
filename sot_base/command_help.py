"""The help of a command, printed before anything is imported that takes seconds: torch, transformers, timm, fairseq."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from sot_base.errors import write_utf8
from sot_base.started_command import is_command, started_module

__all__ = ["asked_for_help", "show_help"]

OTHERS_PARSERS = ("sot_fairseq.train", "sot_hf.run_glue")  # fairseq's and transformers', which need all there is


def asked_for_help() -> bool:
    """Whether this process is a command of the toolkit that was started for its help, and ends when it is printed.

    Packages whose import registers something, with fairseq, transformers or timm, leave that out in such a process.
    """
    words = sys.argv[1:]
    words = words[: words.index("--")] if "--" in words else words
    return bool({"-h", "--help"}.intersection(words)) and is_command() and started_module() not in OTHERS_PARSERS


def show_help(parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Print a command's help and end the process, if that is what it was started for.

    Args:
        parser: Makes the command's parser.
    """
    if asked_for_help():
        write_utf8()
        parser().print_help()
        if sys.stdout is not None:
            sys.stdout.flush()
        sys.exit(0)
