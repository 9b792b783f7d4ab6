"""Devices, processes, precision and logging of the command lines."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from timm.utils import init_distributed_device

from sot_base.errors import UsageError
from sot_base.loading_processes import loading_process_message

__all__ = ["Autocast", "default_workers", "init_device", "command_processes", "memory_format", "mixed_precision"]

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


def init_device(args: Any) -> torch.device:
    """Choose the device, join the other processes if there are any, and let the first one alone log.

    Args:
        args: Options with ``device``; ``rank``, ``local_rank``, ``world_size`` and ``distributed`` are added.

    Raises:
        UsageError: for a device that does not exist.
    """
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind, count = torch.device(args.device).type, torch.cuda.device_count()
    except RuntimeError as error:
        raise UsageError(f"unknown device: --device {args.device}; give cpu, cuda, or cuda and a number") from error
    here = int(os.environ.get("LOCAL_RANK", torch.device(args.device).index or 0))
    if kind == "cuda" and here >= count:
        raise UsageError(f"no such GPU: --device {args.device}, process {here} of {count} GPUs; use --device cpu")
    device = init_distributed_device(args)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("vision").setLevel(logging.INFO if args.rank == 0 else logging.ERROR)
    return device


@contextlib.contextmanager
def command_processes() -> Iterator[None]:
    """Manage the processes of a command: the block, or the decorated function.

    However it ends, it leaves the group of processes that `init_device` joined. A loading process that was killed is
    reported in one line, wherever torch noticed.

    Raises:
        UsageError: for a loading process that was killed.
    """
    try:
        yield
    except (RuntimeError, EOFError, OSError) as error:
        message = loading_process_message(error)
        if message is None:
            raise
        raise UsageError(message) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def default_workers(workers: int | None, world_size: int = 1) -> int:
    """Loading processes of each process: as given, or one for each core, up to 8."""
    if workers is not None:
        return workers
    return max(1, min(8, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", world_size))))


def mixed_precision(device: torch.device, amp: bool | None, dtype: str) -> tuple[Autocast, torch.amp.GradScaler]:
    """The context of mixed precision, and the loss scaler, which only acts in float16."""
    scaler = torch.amp.GradScaler(device.type, enabled=bool(amp) and dtype == "float16")
    if not amp:
        return contextlib.nullcontext, scaler
    return partial(torch.autocast, device.type, dtype=getattr(torch, dtype)), scaler


def memory_format(channels_last: bool) -> torch.memory_format:
    """Layout of images and convolutions."""
    return torch.channels_last if channels_last else torch.contiguous_format
