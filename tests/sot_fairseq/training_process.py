"""Trainings as processes of their own, which tests send signals to."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.sot_fairseq.conftest import command

PROGRAM = str(Path(sys.executable).parent / "fairseq-train")


def start(words, **environment):
    """Start a training in a process group of its own; its output is read from the pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "sot_fairseq.train", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def two_processes(data, save_dir, *words):
    """The command lines of two processes that train one model on the CPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = ("--distributed-world-size", "2", "--distributed-no-spawn", "--distributed-backend", "gloo")
    shared += ("--distributed-init-method", f"tcp://127.0.0.1:{port}", "--ddp-backend", "legacy_ddp")
    return [[*command(data, save_dir, *words), *shared, "--distributed-rank", str(rank)] for rank in (0, 1)]


def read_until(stream, text):
    """Read lines up to one that holds a text; returns what was read."""
    lines = []
    for line in stream:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError(f"the process ended before {text!r}: {''.join(lines)[-3000:]}")


def wait_until(condition, seconds=120):
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen")
        time.sleep(0.05)
