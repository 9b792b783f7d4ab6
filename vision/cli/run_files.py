"""The folder of a run and what lies in it beside the checkpoints: options, the log, TensorBoard's events."""

from __future__ import annotations

import csv
import json
import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import yaml
from timm.utils import get_outdir

from sot_base.atomic import atomic_file
from sot_base.errors import UsageError
from vision.cli.resolve_options import plain_options

__all__ = ["RunLog", "choose_folder", "read_rows", "run_name", "to_yaml", "write_json", "write_options", "write_rows"]

_logger = logging.getLogger(__name__)
_CSV: dict[str, Any] = {"newline": "", "encoding": "utf-8", "errors": "surrogateescape"}  # names of files: any bytes


def run_name(args: Namespace) -> str:
    """What the folder of a run is called unless ``--experiment`` names it: ``<model>-<data>``."""
    data = args.dataset if args.data_dir is None else Path(args.data_dir).resolve().stem
    return f"{args.model}-{data}"


def choose_folder(args: Namespace, resumed: Path | None, name: str | None = None) -> Path:
    """Create the folder of a run: that of the resumed checkpoint, ``--experiment``, or a new one.

    Args:
        args: The options.
        resumed: The checkpoint that the run continues from, if any.
        name: Name of a new folder; None: as `run_name`.

    Raises:
        UsageError: if ``--experiment`` names the folder of another run, or the folder cannot be created.
    """
    try:
        if args.experiment:
            folder = Path(get_outdir(args.output, args.experiment))
            if resumed is None and (folder / "last.pth.tar").exists():
                raise UsageError(f"a run is in {folder} already; add --resume, or choose another --experiment")
            return folder
        if resumed is not None:
            return resumed.parent
        return Path(get_outdir(args.output, name or run_name(args), inc=True))
    except OSError as error:
        raise UsageError(
            f"cannot make the output folder: {args.output} ({error.strerror}); choose another --output"
        ) from error


class RunLog:
    """The numbers of a run: ``summary.csv`` with a row for each evaluation, and TensorBoard's events.

    Args:
        folder: The run's folder.
        rows: The rows of the run so far. All is written anew: of an interrupted run nothing is missing or twice.
        tensorboard: Whether to log for TensorBoard too, if it is installed.
    """

    def __init__(self, folder: Path, rows: Sequence[Mapping[str, Any]] = (), tensorboard: bool = False) -> None:
        self.summary = folder / "summary.csv"
        self._writer = _tensorboard_writer(folder) if tensorboard else None
        if rows:
            write_rows(self.summary, rows)
        for row in rows:
            self._add_events(row)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of the run so far; the last one is new. Its first column counts epochs or steps."""
        write_rows(self.summary, rows)
        self._add_events(rows[-1])

    def _add_events(self, row: Mapping[str, Any]) -> None:
        if self._writer is None:
            return
        place, *values = row.items()
        for name, value in values:
            group, _, rest = name.partition("_")
            tag = f"{group}/{rest}" if group in ("train", "eval") else name
            self._writer.add_scalar(tag, float(value), int(place[1]))
        self._writer.flush()


def _tensorboard_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        _logger.info("TensorBoard is not installed: only summary.csv is written")
        return None
    for events in folder.glob("events.out.tfevents.*"):
        events.unlink()
    return SummaryWriter(folder)


def write_rows(path: str | PathLike[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, at least one, as a CSV file with their keys as its header."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with atomic_file(path) as temporary, temporary.open("w", **_CSV) as file:
        writer = csv.DictWriter(file, fieldnames=columns)
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: str | PathLike[str]) -> list[dict[str, str]]:
    """The rows of a CSV file with a header; none if there is no such file."""
    if not Path(path).is_file():
        return []
    with open(path, **_CSV) as file:
        return list(csv.DictReader(file))


def write_json(path: str | PathLike[str], content: Mapping[str, Any]) -> None:
    """Write plain values as a JSON file."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")


def write_options(folder: Path, args: Namespace) -> None:
    """Write the options of a run to ``options.yaml``, which ``--config`` reads."""
    with atomic_file(folder / "options.yaml") as temporary:
        temporary.write_text(to_yaml(plain_options(args)), encoding="utf-8")


def to_yaml(options: Mapping[str, Any]) -> str:
    """Options as YAML, in their order, without those that are not given."""
    given = {name: value for name, value in options.items() if value is not None and name != "config"}
    return yaml.safe_dump(given, sort_keys=False)
