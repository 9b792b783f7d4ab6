"""Gathering of logged values between CPU processes, which fairseq's own function cannot do."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils

__all__ = ["gather_on_cpu_too"]


def gather_on_cpu_too() -> None:
    """Let ``fairseq.distributed.utils.all_gather_list`` work with gloo.

    The trainer calls it for criteria whose logging outputs are gathered rather than summed. It exchanges pickles
    through a buffer that it allocates on a GPU; with gloo, torch's own function takes its place.
    """
    stock = distributed_utils.all_gather_list
    if getattr(stock, "works_with_gloo", False):
        return

    def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
        group = distributed_utils.get_global_group() if group is None else group
        if torch.distributed.get_backend(group) != "gloo":
            return stock(data, group=group, max_size=max_size)
        gathered: list[Any] = [None] * distributed_utils.get_world_size(group)
        torch.distributed.all_gather_object(gathered, data, group=group)
        return gathered

    all_gather_list.works_with_gloo = True
    distributed_utils.all_gather_list = all_gather_list
