"""A forked process, which reuses the imports of its parent."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

from sot_base.quick_exit import status_of

__all__ = ["ForkedProcess"]


class ForkedProcess:
    """Runs a function in a fork of this process, as if it were the main program of a new one.

    It ends like a program: with the status of `SystemExit`, or with a traceback (`sys.excepthook`) and status 1, after
    the functions registered with `atexit`. The parent must not have used CUDA, OpenMP or autograd, whose threads do not
    survive a fork; importing torch does not start them.

    Args:
        function: The function to run.
        output: Standard output and error of the process; None: those of the parent.
        handlers: Initial signal handlers, by signal number.
        prepare: Called first in the new process.

    Attributes:
        pid: The process ID.
        returncode: The exit status, negative for a signal; None while the process runs.
    """

    def __init__(
        self,
        function: Callable[[], object],
        output: IO[bytes] | None = None,
        handlers: Mapping[int, Any] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.returncode: int | None = None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # otherwise both processes would write the buffer
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            for number, handler in (handlers or {}).items():
                signal.signal(number, handler)
            if prepare is not None:
                prepare()
            if output is not None:
                for number in (1, 2):
                    os.dup2(output.fileno(), number)
            status = _run_as_program(function)
        finally:
            os._exit(status)

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        if self.returncode is None:
            self._collect(os.WNOHANG)
        return self.returncode

    def wait(self) -> int:
        """Wait for the process and return its exit status."""
        while self.returncode is None:
            self._collect(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _collect(self, options: int) -> None:
        pid, status = 0, 0
        with contextlib.suppress(ChildProcessError):  # a signal handler called during waitpid may have collected it
            pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def _run_as_program(function: Callable[[], object]) -> int:
    """Call a function, run the exit functions as the interpreter does, and return the exit status."""
    try:
        status = status_of(function)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        return 1
    return status
