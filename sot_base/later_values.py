"""Copies between host and GPU for which the host does not wait: tensors there, and a few numbers back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["LaterValues", "send"]

Use = Callable[[list[float]], None]


def send(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Copy a tensor of the host to a device, None being its own; the host does not wait for a GPU."""
    if device is not None and device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class LaterValues:
    """Read one small tensor after another, in order, and call a function with the numbers of each.

    On the CPU that happens at once. From a GPU the tensor is copied while the host goes on; its function is called
    during a later call, after the numbers have arrived.

    Args:
        pending: How many tensors may be on their way (> 0); with more, the host waits for the oldest.
    """

    def __init__(self, pending: int = 4) -> None:
        self.pending = pending
        self._copies: deque[tuple[_HostCopy, Use]] = deque()

    def read(self, values: Tensor, use: Use) -> None:
        """Call ``use(values.tolist())``, now or later.

        Shape:
            values (n,).
        """
        if values.device.type == "cpu":
            use(values.tolist())
            return
        self._copies.append((_HostCopy(values), use))
        while self._copies and (len(self._copies) > self.pending or self._copies[0][0].has_arrived()):
            self._use_first()

    def settle(self) -> None:
        """Wait for everything that is on its way, and use it."""
        while self._copies:
            self._use_first()

    def _use_first(self) -> None:
        copy, use = self._copies.popleft()
        use(copy.wait())


class _HostCopy:
    """A copy of a tensor on its way to the host; other devices than NVIDIA's wait for it here."""

    def __init__(self, values: Tensor) -> None:
        self._event = None
        self._host = values.detach()
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values.detach(), non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def has_arrived(self) -> bool:
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._host.tolist()
        return values
