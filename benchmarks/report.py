"""What the commands share: their options, tables in Markdown, and the same tables as JSON."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.timing import describe_device
from sot_base.atomic import atomic_file
from sot_base.markdown import markdown_table

__all__ = ["Report", "benchmark_parser"]

Cell = str | int | float | None
Row = Mapping[str, Cell]


def benchmark_parser(description: str, repetitions: int, quick: str) -> argparse.ArgumentParser:
    """A parser with the options that all commands have.

    Args:
        description: The module's documentation.
        repetitions: Default of ``--repetitions``.
        quick: What ``--quick`` measures.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    parser.add_argument("--device", choices=devices, default=devices[-1], help="default: %(default)s")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's choice")
    parser.add_argument("--repetitions", type=int, default=repetitions, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables as JSON")
    parser.add_argument("--quick", action="store_true", help=f"a smoke test: {quick}")
    return parser


class Report:
    """Prints the tables of a command and writes them as JSON.

    Args:
        args: The options of :func:`benchmark_parser`; its number of threads is set here.
        settings: What was measured, for the first line.

    Attributes:
        device: The device.
    """

    def __init__(self, args: argparse.Namespace, settings: str) -> None:
        if args.threads:
            torch.set_num_threads(args.threads)
        self.device, self.path = torch.device(args.device), args.json
        self.content: dict[str, object] = {
            "command": [Path(sys.argv[0]).stem, *sys.argv[1:]],
            "where": f"{describe_device(self.device)}, {_processor()}, {os.cpu_count()} cores",
            "settings": settings,
            "tables": [],
        }
        print(f"{self.content['where']}\n{settings}")  # noqa: T201

    def table(self, title: str, rows: Sequence[Row]) -> None:
        """Print a table and keep it for the JSON file.

        Args:
            title: Its title.
            rows: Cells by the names of their columns; the first row has all columns.
        """
        columns = list(rows[0])
        cells = [[format_cell(row.get(column)) for column in columns] for row in rows]
        print(f"\n### {title}\n\n{markdown_table([columns, *cells])}", flush=True)  # noqa: T201
        self.content["tables"].append({"title": title, "rows": [dict(row) for row in rows]})  # type: ignore[attr-defined]

    def save(self) -> None:
        """Write the JSON file, if one was asked for."""
        if self.path is not None:
            with atomic_file(self.path) as file:
                file.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")


def format_cell(value: Cell) -> str:
    """A cell of a table: three significant digits, thousands separated."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else value
    if not value or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-3:
        return f"{value:.0e}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"{names[0] if names else platform.machine()} ({kernels})"
