"""What a training's log says, while it is written: results of epochs, and how far the training is."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TextIO

__all__ = ["LogFollower", "failure_reason"]

VALIDATION = re.compile(r"epoch \d+ \| valid on .*")
TRAINER_LOG = re.compile(r"\{'(loss|eval_)[^{}]*'epoch': '?([\d.]+)'?[^{}]*\}")  # of transformers' Trainer
TRAINER_LOSS = re.compile(r"'loss': '?([^',}]+)")
STEP = re.compile(r"\| train_inner \| epoch (\d+): +(\d+) / (\d+) .*?loss=([^,]+)")
EVERY = 15.0  # seconds between progress lines where they do not replace each other


class LogFollower:
    """Prints the validations of a growing log, and now and then a progress line.

    On a terminal the progress line is replaced in place; elsewhere there is one every 15 seconds.

    Args:
        log: The file; what it holds already is skipped.
        name: Of the training, which begins every line.
        stream: Where to print; None for standard output.
    """

    def __init__(self, log: Path, name: str, stream: TextIO | None = None) -> None:
        self.log, self.name, self.stream = log, name, stream or sys.stdout
        self.in_place = self.stream.isatty()
        self.place = log.stat().st_size if log.exists() else 0
        self.begin = time.monotonic()
        self.printed = self.begin
        self.state = "starting"
        self.rest = ""

    def look(self) -> None:
        """Read what is new, and print what there is to say."""
        for line in self._new_lines():
            if step := STEP.search(line):
                epoch, update, updates, loss = step.groups()
                self.state = f"epoch {epoch.lstrip('0')}, update {update} of {updates}, loss {loss}"
            elif result := VALIDATION.search(line):
                self._show(result[0])
            elif (entry := TRAINER_LOG.search(line)) and entry[1] == "eval_":
                self._show(f"epoch {entry[2]} | {entry[0]}")
            elif entry and (loss := TRAINER_LOSS.search(line)):
                self.state = f"epoch {entry[2]}, loss {loss[1]}"
        now = time.monotonic()
        if now - self.printed >= (1.0 if self.in_place else EVERY):
            self.printed = now
            minutes, seconds = divmod(int(now - self.begin), 60)
            self._print(f"{self.name}: {minutes}:{seconds:02d}, {self.state}" + ("" if self.in_place else "\n"))

    def _show(self, result: str) -> None:
        self._print(f"{self.name}: {result}\n")
        self.state = "validated"

    def close(self) -> None:
        """Read to the end, and leave no progress line."""
        self.look()
        self._print("")

    def _new_lines(self) -> list[str]:
        if not self.log.exists():
            return []
        with self.log.open("rb") as stream:
            stream.seek(self.place)
            new = stream.read()
        self.place += len(new)
        *lines, self.rest = (self.rest + new.decode("utf-8", "replace")).split("\n")
        return lines

    def _print(self, text: str) -> None:
        self.stream.write(("\r\x1b[K" if self.in_place else "") + text)
        self.stream.flush()


def failure_reason(log: Path, start: int, status: int) -> str:
    """Why a training failed, in one line.

    Args:
        log: Its log.
        start: Where in the log the training began.
        status: Its status, negative for a signal.
    """
    if status < 0:
        hint = ", perhaps out of memory" if status == -9 else ""
        return f"killed by signal {-status}{hint}"
    with log.open("rb") as stream:
        stream.seek(start)
        lines = stream.read().decode("utf-8", "replace").splitlines()
    mistakes = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    last = [line for line in lines if line.strip()][-1:] or [f"status {status}"]
    return (mistakes or last)[-1]
