"""Errors that a user can correct, and running a command that reports them in one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from sot_base.allocator import keep_freed_memory
from sot_base.garbage import keep_imports
from sot_base.loading_processes import loading_process_message
from sot_base.quick_exit import exit_quickly

__all__ = ["NO_ROOM", "UsageError", "os_error_message", "run_main", "write_utf8"]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what goes wrong while a file is written, not when it is opened
LONGEST = 1500  # characters of a message
ADVICE = {
    errno.ENOSPC: "make room, or choose another place",
    errno.EDQUOT: "make room in your quota, or choose another place",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or choose another place",
    errno.EROFS: "choose a place that can be written to",
}


class UsageError(ValueError):
    """A mistake in the input or the command line that the user can correct.

    The message has the form ``<what is wrong>: <where>; <what to do>``. Command lines print it without a traceback
    and exit with status 2 (:func:`run_main`). A long one, as of a value with thousands of characters, loses its middle.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} [...] {text[-LONGEST // 2 :]}"


def run_main(main: Callable[[], int | None]) -> None:
    """Run ``main`` as a program: exit status 0, its own return value, or 2 with a one-line message on `UsageError`.

    A path that cannot be read or written is also a mistake that the user can correct, and so is a full disk, a file
    beyond its limit, or a loading process that was killed for lack of memory. Ctrl-C ends with status 130, as shells
    have it, and without a traceback. Output is UTF-8, as input is, whatever the locale.
    """
    write_utf8()
    keep_freed_memory()
    keep_imports()
    try:
        status = _run(main)
    except SystemExit as end:  # such as that of ``--help``
        if isinstance(end.code, str):
            raise
        status = end.code or 0
    except (OSError, EOFError, RuntimeError) as error:  # the latter may come from torch's handler of SIGCHLD: anywhere
        try:
            message = loading_process_message(error)
        except RuntimeError as second:  # here, too; it comes once
            message = loading_process_message(second)
        if message is None:
            raise
        status = _failed(message)
    exit_quickly(status)
    sys.exit(status)


def _run(main: Callable[[], int | None]) -> int:
    try:
        status = main() or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # what fails here would be a traceback at the end of the interpreter
        return status
    except UsageError as error:
        return _failed(str(error))
    except BrokenPipeError as error:  # the reader of a pipe (``| head``) has gone: not our error
        if loading_process_message(error):
            raise
        _drop_output()
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except OSError as error:
        message = os_error_message(error)
        if message is None:
            raise
        if error.filename is None:
            _drop_output()
        return _failed(message)


def _failed(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return 2


def write_utf8() -> None:
    """Let standard output and error take every label and path: UTF-8, and the bytes of paths that are none."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def os_error_message(error: OSError) -> str | None:
    """The system's error as ``<what is wrong>: <where>; <what to do>``; None if it tells no more than its kind.

    Of a copy that failed, the path is the one that was written.
    """
    path = error.filename if error.filename2 is None else error.filename2
    if path is not None:
        where = os.path.abspath(os.fsdecode(path))
    elif error.errno in NO_ROOM:
        where = "the output, or a temporary file"
    else:
        return None
    return f"{error.strerror}: {where}; {ADVICE.get(error.errno or 0, 'check the path and who may write there')}"


def _drop_output() -> None:
    """Send what is still to be written to nowhere: the interpreter would try again and fail at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
