"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import IO, Any

from sot_base.forked import ForkedProcess

__all__ = ["Children", "Process"]

Process = subprocess.Popen[Any] | ForkedProcess

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
PR_SET_PDEATHSIG = 1  # of Linux's prctl
POLL = 0.1  # seconds between looks at a process
GRACE = 1.0  # seconds that a process has to answer Ctrl-C, which a terminal sends to all, before it is sent once more
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Children:
    """Starts processes, passes SIGTERM, SIGHUP and SIGINT on to them, and leaves none behind.

    On Linux the system sends them SIGTERM if this process is killed. A context manager, for the main thread.

    Attributes:
        stopped: The signal that this process received, or 0.
    """

    def __init__(self) -> None:
        self.stopped = 0
        self._running: list[Process] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Children:
        for number in PASSED_ON:
            before = signal.getsignal(number)
            if number == signal.SIGINT or before is not signal.SIG_IGN:  # nohup stays; scripts ignore SIGINT behind "&"
                self._before[number] = before
                signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._send(signal.SIGTERM)
        for process in self._running:
            process.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process; options are those of `subprocess.Popen`."""
        process = subprocess.Popen(command, preexec_fn=self._end_with_the_parent(), **options)
        self._add(process)
        return process

    def fork(self, function: Callable[[], object], output: IO[bytes] | None = None) -> ForkedProcess:
        """Start a process that runs a function with what this one has imported (:class:`ForkedProcess`)."""
        process = ForkedProcess(function, output, self._before, self._end_with_the_parent())
        self._add(process)
        return process

    def _add(self, process: Process) -> None:
        self._running.append(process)
        if self.stopped and self.stopped != signal.SIGINT:  # came before the process was known
            process.send_signal(self.stopped)

    @staticmethod
    def _end_with_the_parent() -> Callable[[], None]:
        """What a new process calls in order to end with this one."""
        parent = os.getpid()

        def end_with_the_parent() -> None:
            if LIBC is not None:
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
                if os.getppid() != parent:  # killed in between
                    os._exit(1)

        return end_with_the_parent

    def wait(self, *processes: Process, look: Callable[[], None] | None = None) -> list[int]:
        """Wait for processes, and look at them from time to time.

        Args:
            *processes: Some of those that were started.
            look: Called repeatedly while they run, and once more at the end.

        Returns:
            Their statuses, negative for a signal.

        Raises:
            SystemExit: with 128 + its number if a signal was received; the processes have ended then.
        """
        interrupted_at = None
        while any(process.poll() is None for process in processes):
            if look is not None:
                look()
            if self.stopped == signal.SIGINT and interrupted_at is None:
                interrupted_at = time.monotonic()
            if interrupted_at is not None and time.monotonic() - interrupted_at > GRACE:
                self._send(signal.SIGINT)
                interrupted_at = time.monotonic()
            time.sleep(POLL)
        if look is not None:
            look()
        if self.stopped:
            raise SystemExit(128 + self.stopped)
        return [process.wait() for process in processes]

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.stopped = self.stopped or number
        if number != signal.SIGINT:
            self._send(number)

    def _send(self, number: int) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(number)
