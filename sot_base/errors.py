"""Errors that a user can correct, and running a command that reports them in one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

__all__ = ["UsageError", "run_main"]


class UsageError(ValueError):
    """A mistake in the input or the command line that the user can mend.

    The message has the form ``<what is wrong>: <where>; <what to do>``. Command lines print it without a traceback
    and exit with status 2 (:func:`run_main`).
    """


def run_main(main: Callable[[], int | None]) -> None:
    """Run ``main`` as a program: exit status 0, its own return value, or 2 with a one-line message on `UsageError`.

    A path that cannot be read or written is a mistake that the user can mend, too, and so is a full disk or a file
    beyond its limit. Ctrl-C ends with status 130, as shells have it, and without a traceback.
    """
    try:
        status = main() or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # what fails here would be a traceback at the end of the interpreter
        sys.exit(status)
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe (``| head``) has gone: not our error
        _drop_output()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            sys.stderr.write(f"error: {error.strerror}: the output, or a temporary file; make room\n")
            _drop_output()
            sys.exit(2)
        if error.filename is None:
            raise
        where = os.path.abspath(os.fsdecode(error.filename))
        sys.stderr.write(f"error: {error.strerror}: {where}; check the path and who may write there\n")
        sys.exit(2)


def _drop_output() -> None:
    """Send what is still to be written to nowhere: the interpreter would try again and fail at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
