"""Signals that ask a training to stop: clusters send SIGTERM before a time limit, terminals SIGHUP when they close."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from torch.utils.data import get_worker_info

from sot_base import loading_processes
from sot_base.loading_processes import end_loading_processes_at_exit

__all__ = ["StopSignals", "leave_signals_to_the_parent", "signals", "signals_for_children"]

STOPPING = (signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Remembers the first signal that asked to stop, so that an update is finished and saved first."""

    def __init__(self) -> None:
        self.number = 0
        self.prepared = False

    def prepare(self) -> None:
        """Call before loading processes start: they leave signals to this process, which ends them."""
        if not self.prepared:
            self.prepared = True
            end_loading_processes_at_exit()

    def install(self) -> None:
        """Take the signals from now on; one that is ignored, as under ``nohup``, stays so."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number

    def received(self, trainer: Any) -> int:
        """The signal that any of the processes received; 0 if none did.

        All processes of a training must ask at the same update.
        """
        if trainer.data_parallel_world_size <= 1:
            return self.number
        numbers = torch.tensor([float(self.number)], device=trainer.device)
        distributed_utils.all_reduce(numbers, group=trainer.data_parallel_process_group, op="max")
        return int(numbers.item())


signals = StopSignals()


def leave_signals_to_the_parent() -> None:
    """Ignore the signals in a data loading process of a training, where fairseq has no hook for it but the data set."""
    if signals.prepared and get_worker_info() is not None:
        _ignore_signals(os.getpid())


@functools.lru_cache(maxsize=1)
def _ignore_signals(process: int) -> None:
    """Ignore them once in each process."""
    loading_processes.leave_signals_to_the_parent()


@contextlib.contextmanager
def signals_for_children() -> Iterator[None]:
    """Pass the signals on to the processes that are started in the block, one for each GPU.

    The process that starts them would end at once, and they with it, without a checkpoint.
    """

    def pass_on(number: int, frame: FrameType | None) -> None:
        children = multiprocessing.active_children()
        for child in children:
            os.kill(child.pid or 0, number)
        if not children:  # nothing to save yet
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    before = {number: signal.getsignal(number) for number in STOPPING}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number] or signal.SIG_DFL)
