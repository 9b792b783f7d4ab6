"""Run the demo's two settings side by side, each line of output with its setting, and print one table."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from sot_base.children import Children
from sot_base.errors import run_main

HERE = Path(__file__).resolve().parent
SETTINGS: dict[str, tuple[dict[str, str], list[str]]] = {
    "frozen": ({"LR": "1e-3", "MAX_EPOCH": "4"}, ["--freeze-backbone"]),
    "fine-tuned": ({"LR": "1e-4", "MAX_EPOCH": "1"}, []),
}


def main() -> int:
    """Run the demo; returns the exit status."""
    output = Path(os.environ.get("OUT_DIR") or "out/demo")
    with Children() as children:
        runs = []
        for name, (variables, words) in SETTINGS.items():
            run = children.start(
                ["bash", str(HERE / "cola.sh"), "--cpu", *words],
                env={**os.environ, **variables, "OUT_DIR": str(output / name)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            runs.append((run, threading.Thread(target=_print_lines, args=(name, run.stdout))))
        for _, thread in runs:
            thread.start()
        statuses = children.wait(*(run for run, _ in runs))
        for _, thread in runs:
            thread.join()
        if any(statuses) or os.environ.get("DRY_RUN") == "1":
            return max(map(abs, statuses))
        print("\n== dev results: encoder frozen and fine-tuned", flush=True)  # noqa: T201
        folders = [str(output / name) for name in SETTINGS]
        (status,) = children.wait(children.start([sys.executable, "-m", "sot_fairseq.results", "--saved", *folders]))
    return abs(status)


def _print_lines(name: str, lines: IO[bytes]) -> None:
    """Print lines as they come, each with the setting's name."""
    width = max(map(len, SETTINGS))
    for line in lines:
        text = line.decode("utf-8", "surrogateescape").rstrip("\n")
        sys.stdout.write(f"{name:<{width}} | {text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run_main(main)
