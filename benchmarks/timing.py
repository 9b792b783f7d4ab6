"""Timing of several implementations, interleaved."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

__all__ = ["describe_device", "median_seconds", "seconds"]


def seconds(step: Callable[[], object], device: torch.device) -> float:
    """Time of one call: CPU time if torch uses one thread, else wall time; synchronises a GPU before and after."""
    on_gpu = device.type == "cuda"
    clock = time.thread_time if not on_gpu and torch.get_num_threads() == 1 else time.perf_counter
    if on_gpu:
        torch.cuda.synchronize()
    start = clock()
    step()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


def median_seconds(
    steps: Mapping[str, Callable[[], object]], repetitions: int, device: torch.device
) -> dict[str, float]:
    """Median time of each step; the steps alternate, in reversed order every other time."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(repetitions):
        for name in sorted(steps, reverse=i % 2 == 1):
            times[name].append(seconds(steps[name], device))
    return {name: statistics.median(measured) for name, measured in times.items()}


def describe_device(device: torch.device) -> str:
    """Version of torch and name of the device."""
    if device.type == "cuda":
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"
    return f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads"
