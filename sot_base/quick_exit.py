"""The end of a command without the teardown of its libraries, which takes half a second and 100 MiB with torch."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

from sot_base.started_command import is_command

__all__ = ["exit_quickly", "status_of"]


def exit_quickly(status: int) -> None:
    """End this process if it is a command and has not used a GPU, whose profilers write at the end; else return.

    It also returns under ``python -i``. What Python does at its end happens here, too: threads are waited for, the
    functions registered with `atexit` run, and the streams are flushed. Then the system takes back everything at once,
    where Python would delete modules and the libraries their tables, page by page.

    Args:
        status: The exit status.
    """
    cuda = sys.modules.get("torch.cuda")
    if not is_command() or sys.flags.inspect or (cuda is not None and cuda.is_initialized()):
        return
    try:
        with contextlib.suppress(ValueError, AttributeError):  # not in a thread, not on Windows
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler reports loading processes, which end now
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it is closed
                    stream.flush()
        with contextlib.suppress(OSError, AttributeError, TypeError):  # not on Windows
            ctypes.CDLL(None).fflush(None)  # what libraries wrote by printf, such as oneDNN's log
    finally:
        os._exit(status)


def status_of(function: Callable[[], object]) -> int:
    """Call a function as the interpreter calls a program, which reports errors by `sys.excepthook`; its exit status."""
    try:
        try:
            function()
        except SystemExit:
            raise
        except BaseException:
            sys.excepthook(*sys.exc_info())  # may raise SystemExit for errors with their own exit status
            return 1
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    return 0
