"""Signals that ask a run to stop: clusters send SIGTERM before a time limit, terminals SIGHUP when they close."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

import torch
import torch.distributed as dist

__all__ = ["Stop", "StopSignals"]

STOPPING = (signal.SIGTERM, signal.SIGHUP)


class Stop(Exception):  # noqa: N818  (no error: the run is asked to end)
    """A signal has come while nothing is half done.

    Args:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class StopSignals:
    """A context in which such signals wait for the end of an update; a second one ends the process at once.

    Args:
        device: Where processes of a group agree.
    """

    def __init__(self, device: torch.device) -> None:
        self.number, self._device = 0, device
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in STOPPING}
            self._before = {number: old for number, old in before.items() if old is not signal.SIG_IGN}  # nohup
            for number in self._before:
                signal.signal(number, self._remember)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for other, handler in self._before.items():
            signal.signal(other, handler)

    def check(self) -> None:
        """End the run here if any of its processes was asked to; all of them must call this at the same update.

        Raises:
            Stop: with the signal.
        """
        number = self.number
        if dist.is_initialized():
            agreed = torch.tensor(number, device=self._device)
            dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
            number = int(agreed)
        if number:
            raise Stop(number)

    def watch(self, loader: Any) -> Interruptible:
        """A loader of batches that change nothing: a run may end between two of them."""
        return Interruptible(self, loader)


class Interruptible:
    """A loader that ends a run of one process at the next batch; several processes see the loader through.

    Args:
        signals: The signals.
        loader: Yields batches.
    """

    def __init__(self, signals: StopSignals, loader: Any) -> None:
        self._signals, self._loader = signals, loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if not dist.is_initialized():
                self._signals.check()
            yield batch
