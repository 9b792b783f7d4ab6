"""Python's garbage collector while a command starts: it finds nothing there, and takes as long as most imports."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from sot_base.started_command import is_command

__all__ = ["collect_later", "keep_imports"]


@contextlib.contextmanager
def collect_later() -> Iterator[None]:
    """Import in the block without looking for garbage; a command keeps what was imported (:func:`keep_imports`)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        keep_imports()
        if enabled:
            gc.enable()


def keep_imports() -> None:
    """Leave out of all later collections what is there now, modules, classes and functions, if this is a command.

    They stay until the process ends, and the last collection is then short, too. Elsewhere what is there may be the
    user's.
    """
    if is_command():
        gc.freeze()
