"""Signals in the processes that load data: they end with the trainer, not before it."""

from __future__ import annotations

import os
import signal
import threading

__all__ = ["obey_the_trainer_alone"]


def obey_the_trainer_alone(worker: int) -> None:
    """Let SIGTERM end a loading process only if its parent sent it, and SIGINT not at all (a ``worker_init_fn``).

    A cluster or a terminal signals the whole process group, and the trainer needs the next batch to save.

    Args:
        worker: The process's number, not used.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_wait_for_the_trainer, daemon=True).start()


def _wait_for_the_trainer() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(128 + signal.SIGTERM)
