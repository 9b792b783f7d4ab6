"""A process that goes on from what this one has imported, instead of importing it again."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

__all__ = ["ForkedProcess"]


class ForkedProcess:
    """Runs a function in a fork of this process, as the main program of a process of its own.

    It ends as a program does: with the status of `SystemExit`, or a traceback (`sys.excepthook`) and status 1, and what
    was registered with `atexit`. This process must not have used CUDA, OpenMP or autograd, whose threads a fork lacks;
    importing torch uses none of them.

    Args:
        function: What the process does.
        output: Where its standard output and error go; None: where this process's go.
        handlers: Signal handlers that it starts with, by the signal's number.
        prepare: Called first, in the new process.

    Attributes:
        pid: Its number.
        returncode: Its status once it has ended, negative for a signal; None before.
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
            stream.flush()  # else both processes would write what is in the buffer
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
        """The status if the process has ended, else None."""
        if self.returncode is None:
            self._collect(os.WNOHANG)
        return self.returncode

    def wait(self) -> int:
        """Wait for the end; returns the status."""
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
        with contextlib.suppress(ChildProcessError):  # a signal's handler, called in here, asks again
            pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def _run_as_program(function: Callable[[], object]) -> int:
    """Call a function and end what belongs to the process as the interpreter does; returns the exit status."""
    try:
        status = _status_of(function)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
        return 1
    return status


def _status_of(function: Callable[[], object]) -> int:
    try:
        try:
            function()
        except SystemExit:
            raise
        except BaseException:
            sys.excepthook(*sys.exc_info())  # ends with SystemExit where a mistake has a status of its own
            return 1
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    return 0
