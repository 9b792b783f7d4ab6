"""The device on which encoders run and heads are trained."""

from __future__ import annotations

import torch

from sot_base.errors import UsageError

__all__ = ["choose_device"]


def choose_device(name: str | None) -> torch.device:
    """Return the device of this name; None: a GPU if there is one.

    Raises:
        UsageError: if it does not exist.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"no such device: {name}; give cpu, cuda, or cuda:1") from error
    return device
