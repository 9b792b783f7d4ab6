"""The processes of torch's data loaders: they end with the trainer, not before it; one that was killed is named.

A terminal or a cluster signals the whole process group, and the trainer needs the next batch to finish a step and save.
"""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.util
import os
import re
import signal
import sys
import threading
import traceback
from multiprocessing.context import ForkContext, ForkProcess
from types import TracebackType

__all__ = [
    "LoadingContext",
    "end_loading_processes_at_exit",
    "leave_signals_to_the_parent",
    "loading_process_message",
    "obey_the_trainer_alone",
]

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class _LoadingProcess(ForkProcess):
    """A process that starts with the signals blocked: one that comes while it forks would leave it half set up."""

    def start(self) -> None:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class LoadingContext(ForkContext):
    """The multiprocessing context for loaders whose ``worker_init_fn`` is :func:`obey_the_trainer_alone`."""

    Process = _LoadingProcess


def obey_the_trainer_alone(worker: int) -> None:
    """Let no signal but a SIGTERM from its parent end a loading process (a ``worker_init_fn``).

    Args:
        worker: The process's number, not used.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    _report_no_lost_connection()
    threading.Thread(target=_wait_for_the_trainer, daemon=True).start()


def _wait_for_the_trainer() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(128 + signal.SIGTERM)


def _report_no_lost_connection() -> None:
    """Print no traceback where the trainer, interrupted while it fetches a batch, closes the connection.

    Errors of the thread of `multiprocessing` that sends file descriptors go to `sys.excepthook`.
    """
    report = sys.excepthook

    def report_others(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        if not isinstance(error, (ConnectionError, EOFError)):
            report(kind, error, where)

    sys.excepthook = report_others


def loading_process_message(error: BaseException) -> str | None:
    """What to report if an error is due to a loading process that was killed; None for any other error.

    torch notices it in a signal handler or while it waits for a batch, and says so; or while it asks the process for
    the shared memory of a batch, which ends in any error of a connection. In the latter case the handler is about to
    raise as well, wherever the program is by then, and is removed.
    """
    if isinstance(error, (EOFError, OSError)) and getattr(error, "filename", None) is None:
        _remove_torch_handler()
        frames = traceback.extract_tb(error.__traceback__)
        if not any(frame.filename.endswith("resource_sharer.py") for frame in frames):
            return None
    elif not (isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)):
        return None
    signal_name = re.search(r"killed by signal: ([\w ]*\w)", str(error))
    what = f"was killed ({signal_name[1]})" if signal_name else "has ended"
    return (
        f"a loading process {what}: the data loader; use fewer of them, or more memory, shared memory too (docker run "
        "--shm-size)"
    )


def _remove_torch_handler() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def leave_signals_to_the_parent() -> None:
    """Ignore signals that often go to a whole group of processes: the parent ends this one when it has saved.

    For loaders that take no ``worker_init_fn``; the others use :func:`obey_the_trainer_alone`. The parent must call
    :func:`end_loading_processes_at_exit`, since Python ends such processes by SIGTERM.
    """
    _report_no_lost_connection()
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
