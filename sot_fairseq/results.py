"""Dev metrics of every head and seed of a run, as ``results.json`` and as a table.

``python -m sot_fairseq.results OUT_DIR [OUT_DIR ...]`` evaluates ``OUT_DIR/<head>/seed-<n>/checkpoint_best.pt`` on
every dev split of ``OUT_DIR/data``, writes ``OUT_DIR/results.json`` and prints one table of all runs given;
``--saved`` prints the files that are there already, without evaluating anything. :mod:`sot_text.results_table`
describes both.
"""

from __future__ import annotations

from pathlib import Path

from sot_base.command_help import show_help
from sot_text.results_table import results_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: results_parser("python -m sot_fairseq.results", __doc__.split("\n")[0]))

from sot_base.errors import run_main
from sot_fairseq.data.header import DataHeader
from sot_fairseq.prediction.predictor import from_pretrained
from sot_text.results_table import Results, finished_trainings, gather, show_results

__all__ = ["collect", "main"]

BEST = "checkpoint_best.pt"


def collect(out_dir: Path) -> Results:
    """Evaluate every checkpoint of a run on every labelled dev split.

    Args:
        out_dir: The folder that a script of ``glue_scripts`` wrote.

    Raises:
        UsageError: if there is no checkpoint.
    """
    header = DataHeader.load(out_dir / "data")
    splits = {name: counts for name, counts in header.splits.items() if name.startswith("valid") and counts.labelled}

    def measure(folder: Path) -> dict[str, dict[str, float]]:
        predictor = from_pretrained(folder, BEST)
        return {
            Path(counts.source).stem: predictor.evaluate(out_dir / "data", split) for split, counts in splits.items()
        }

    return gather(out_dir, header.task, header.main_metric, finished_trainings(out_dir, BEST), measure)


def main() -> None:
    """Collect, write and print."""
    show_results("python -m sot_fairseq.results", __doc__.split("\n")[0], collect)


if __name__ == "__main__":
    run_main(main)
