"""Signals in the processes that load data: they end with the trainer, not before it.

A terminal or a cluster signals the whole process group, and the trainer needs the next batch to finish a step and save.
"""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.context import ForkContext, ForkProcess

__all__ = ["LoadingContext", "obey_the_trainer_alone"]

SIGNALS = {signal.SIGINT, signal.SIGTERM}


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
    """Let SIGTERM end a loading process only if its parent sent it, and SIGINT not at all (a ``worker_init_fn``).

    Args:
        worker: The process's number, not used.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    threading.Thread(target=_wait_for_the_trainer, daemon=True).start()


def _wait_for_the_trainer() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(128 + signal.SIGTERM)
