"""Timing of several implementations, interleaved."""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

__all__ = [
    "Turns",
    "Usage",
    "clock",
    "describe_device",
    "in_folder",
    "median_usage",
    "run_process",
    "seconds",
    "take_turns",
]


def clock(device: torch.device) -> float:
    """Now: CPU time of this thread if torch uses one, else wall time; waits for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.thread_time() if device.type != "cuda" and torch.get_num_threads() == 1 else time.perf_counter()


def seconds(step: Callable[[], object], device: torch.device) -> float:
    """Time of one call: CPU time if torch uses one thread, else wall time; synchronises a GPU before and after."""
    start = clock(device)
    step()
    return clock(device) - start


class Turns(dict[str, list[float]]):
    """Seconds of contenders that took turns: of each as many, in the order of the turns."""

    def median(self, name: str) -> float:
        """The median time of a contender."""
        return statistics.median(self[name])

    def ratio(self, name: str, peer: str) -> float:
        """The median of :meth:`ratios`, which noise that lasts longer than a turn does not move."""
        return statistics.median(self.ratios(name, peer))

    def ratios(self, name: str, peer: str) -> list[float]:
        """The time of each turn relative to the peer's beside it, which met the same state of the machine."""
        return [time / other for time, other in zip(self[name], self[peer], strict=True)]


def take_turns(steps: Mapping[str, Callable[[], object]], repetitions: int, device: torch.device) -> Turns:
    """Time the steps (:func:`seconds`) in turns, in reversed order every other time."""
    turns = Turns({name: [] for name in steps})
    for i in range(repetitions):
        for name in sorted(steps, reverse=i % 2 == 1):
            turns[name].append(seconds(steps[name], device))
    return turns


def describe_device(device: torch.device) -> str:
    """Version of torch and name of the device."""
    if device.type == "cuda":
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}"
    return f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads"


class Usage(NamedTuple):
    """What a process used: CPU seconds of it and its children, seconds, and its peak of resident memory in MiB."""

    cpu: float
    wall: float
    peak: float


def run_process(words: Sequence[str | os.PathLike[str]], **environment: str) -> Usage:
    """Run a command to its end.

    Args:
        words: The command; ``python`` is this interpreter.
        **environment: More variables of the environment.

    Raises:
        RuntimeError: with the end of what it printed, if it fails.
    """
    command = [sys.executable if word == "python" else os.fspath(word) for word in words]
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), **environment},
        )
        ended, peak = 0, 0.0
        while not ended:
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
            if not ended:
                peak = max(peak, _resident_peak(process.pid))
                time.sleep(0.02)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            end = output.read().decode("utf-8", "replace")[-2000:]
            raise RuntimeError(f"exit status {process.returncode}: {shlex.join(command)}\n{end}")
    return Usage(used.ru_utime + used.ru_stime, wall, peak)


def _resident_peak(pid: int) -> float:
    """Peak of resident memory so far, in MiB; what ``wait4`` says is at least the memory of the process that waits."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next((int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM")), 0.0)
    except OSError:
        return 0.0


def in_folder(words: Sequence[str | os.PathLike[str]]) -> Callable[[], Usage]:
    """A command whose last argument is a new folder, removed afterwards."""

    def run() -> Usage:
        with tempfile.TemporaryDirectory() as folder:
            return run_process([*words, folder])

    return run


def median_usage(commands: Mapping[str, Callable[[], Usage]], repetitions: int) -> dict[str, Usage]:
    """Median of each column over runs that alternate, in reversed order every other time."""
    found: dict[str, list[Usage]] = {name: [] for name in commands}
    for i in range(repetitions):
        for name in sorted(commands, reverse=i % 2 == 1):
            found[name].append(commands[name]())
    return {name: Usage(*map(statistics.median, zip(*runs, strict=True))) for name, runs in found.items()}
