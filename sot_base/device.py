"""The device that a user asks for."""

from __future__ import annotations

import torch

from sot_base.errors import UsageError

__all__ = ["choose_device"]


def choose_device(name: str | torch.device | None) -> torch.device:
    """Return the device of this name; None: a GPU if there is one.

    Raises:
        UsageError: if it does not exist, or computes nothing (``meta``).
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # an unknown name; a torch without CUDA asserts
        raise UsageError(f"no such device: {name} ({str(error).splitlines()[0]}); give cpu or cuda") from error
    return device
