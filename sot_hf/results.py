"""Dev metrics of every head and seed of a run on a Hugging Face model, as ``results.json`` and as a table.

``python -m sot_hf.results OUT_DIR [OUT_DIR ...]`` reads the ``OUT_DIR/<head>/seed-<n>/eval_results.json`` of
:mod:`sot_hf.run_glue`, writes ``OUT_DIR/results.json`` and prints one table for all given runs; ``--saved`` prints
existing ``results.json`` files. :mod:`sot_text.results_table` describes both.
"""

from __future__ import annotations

from pathlib import Path

from sot_base.command_help import show_help
from sot_text.results_table import results_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: results_parser("python -m sot_hf.results", __doc__.split("\n")[0]))

from sot_base.errors import UsageError, run_main
from sot_base.small_files import read_json
from sot_hf.evaluation import EVAL_PREFIX
from sot_text.glue import get_task
from sot_text.results_table import Results, finished_trainings, gather, read_run, show_results

__all__ = ["collect", "main"]

EVAL_RESULTS = "eval_results.json"


def collect(out_dir: Path) -> Results:
    """Collect the metrics of every training of a run.

    Args:
        out_dir: The folder that a script of ``glue_scripts`` wrote.

    Raises:
        UsageError: if nothing was evaluated, or a metric is missing.
    """
    name = read_run(out_dir).task
    if name is None:
        raise UsageError(f"no run.json that names the task: {out_dir.absolute()}; run a script of glue_scripts first")
    task = get_task(name)

    def measure(folder: Path) -> dict[str, dict[str, float]]:
        path = folder / EVAL_RESULTS
        values = read_json(path, dict[str, float], "run the script again")
        if task.main_metric not in {key.removeprefix("eval_") for key in values}:
            raise UsageError(f"no eval_{task.main_metric}: {path}; run the script again")
        metrics = {
            Path(split.file).stem: {
                metric: 100 * values[f"{EVAL_PREFIX[split.name]}_{metric}"]
                for metric in task.metrics
                if f"{EVAL_PREFIX[split.name]}_{metric}" in values
            }
            for split in task.splits
            if split.name in EVAL_PREFIX
        }
        return {split: found for split, found in metrics.items() if found}

    return gather(out_dir, task.name, task.main_metric, finished_trainings(out_dir, EVAL_RESULTS), measure)


def main() -> None:
    """Collect, write and print."""
    show_results("python -m sot_hf.results", __doc__.split("\n")[0], collect)


if __name__ == "__main__":
    run_main(main)
