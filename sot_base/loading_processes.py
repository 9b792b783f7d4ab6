"""Processes that load data: they leave signals to the process that started them, and end with it."""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.util
import signal

__all__ = ["end_loading_processes_at_exit", "leave_signals_to_the_parent"]

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def leave_signals_to_the_parent(worker: int = 0) -> None:
    """Ignore signals that often go to a whole group of processes: the parent ends this one when it has saved.

    The parent must call :func:`end_loading_processes_at_exit`, since Python ends such processes by SIGTERM.

    Args:
        worker: The process's number, not used (a ``worker_init_fn``).
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@functools.cache
def end_loading_processes_at_exit() -> None:
    """Let this process kill its loading processes when it exits, instead of waiting for them."""
    multiprocessing.util.Finalize(None, _kill_loading_processes, exitpriority=100)


def _kill_loading_processes() -> None:
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
