"""CPU seconds that commands take to start: to print ``--help``, and to the end of their first training step.

Every command runs in a process of its own; they take turns, and the median counts, user and system time of all its
threads. ``peer`` is a command of fairseq, transformers or timm that does the like, or what its users' own script
imports first. The floor is ``import torch``.

The first step is a whole training of one step on 64 rows, without validation: imports, data, model, step and
checkpoint.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import DEMO_CORPUS
from benchmarks.fairseq_runs import OURS, STOCK, preprocess_rows, quiet, train_words
from benchmarks.report import Report, benchmark_parser
from benchmarks.timing import Usage, in_folder, median_usage, run_process
from sot_text.minilm import find_minilm

FLOOR = "import torch"
FAIRSEQ_TRAIN = ("-m", "fairseq_cli.train")
TRAINER = (
    "-c",
    "from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments",
)
PIPELINE = ("-c", "from transformers import AutoModelForSequenceClassification, pipeline")
TIMM = ("-c", "import timm, timm.data, timm.optim, timm.scheduler, timm.utils")
HELP: dict[str, tuple[str, ...] | None] = {
    "sot_fairseq.train": (*FAIRSEQ_TRAIN, "--help"),
    "sot_fairseq.preprocess": ("-m", "fairseq_cli.preprocess", "--help"),
    "sot_fairseq.predict": ("-c", "import fairseq.models.roberta"),
    "sot_fairseq.probe": None,
    "sot_fairseq.sweep": None,
    "sot_fairseq.visualize": None,
    "sot_hf.run_glue": TRAINER,
    "sot_hf.predict": PIPELINE,
    "sot_hf.probe": None,
    "sot_hf.visualize": None,
    "vision.train": TIMM,
    "vision.validate": TIMM,
    "vision.predict": TIMM,
    "vision.probe": None,
    "vision.visualize": None,
    "sot_visual.compare": None,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = benchmark_parser(__doc__, repetitions=3, quick="--help of one command, once")
    parser.add_argument("--parts", nargs="+", choices=("help", "step"), default=["help", "step"])
    parser.add_argument("--commands", nargs="+", choices=HELP, default=list(HELP), metavar="COMMAND", help="of --help")
    args = parser.parse_args(argv)
    if args.quick:
        args.parts, args.commands, args.repetitions = ["help"], ["sot_visual.compare"], 1
    report = Report(args, f"median of {args.repetitions}")
    if "help" in args.parts:
        report.table("CPU seconds of --help", helps(args.commands, args.repetitions))
    if "step" in args.parts:
        report.table("CPU seconds to the end of the first training step", first_steps(report, args.repetitions))
    report.save()


def helps(commands: Sequence[str], repetitions: int) -> list[dict[str, str | float | None]]:
    """Rows of the table of ``--help``."""
    peers = {words for name in commands if (words := HELP[name]) is not None}
    runs: dict[str, Callable[[], Usage]] = {FLOOR: lambda: run_process(["python", "-c", FLOOR])}
    runs |= {name: lambda name=name: run_process(["python", "-m", name, "--help"]) for name in commands}
    runs |= {" ".join(words): lambda words=words: run_process(["python", *words]) for words in peers}
    found = median_usage(runs, repetitions)
    rows: list[dict[str, str | float | None]] = []
    for name in (*commands, FLOOR):
        words = HELP.get(name)
        peer = None if words is None else found[" ".join(words)].cpu
        cpu = found[name].cpu
        row = {"command": name, "CPU seconds": cpu, "seconds": found[name].wall, "peer's CPU seconds": peer}
        rows.append({**row, "ratio": None if peer is None else cpu / peer, "peak MiB": found[name].peak})
    return rows


@quiet()
def first_steps(report: Report, repetitions: int) -> list[dict[str, str | float]]:
    """Rows of the table of first steps."""
    cpu = report.device.type == "cpu"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = preprocess_rows("CoLA", DEMO_CORPUS, folder, 64, 32)
        commands: dict[str, list[str | Path]] = {}
        for side, module in ((STOCK, "fairseq_cli.train"), (OURS, "sot_fairseq.train")):
            words = train_words(data, side, side, 1, 64, 32, cpu, "--max-update", "1", "--disable-validation")
            commands[module] = ["python", "-m", module, *words, "--save-dir"]
        glue = DEMO_CORPUS / "CoLA"
        commands["transformers' Trainer"] = ["python", "-m", "benchmarks.stock_trainer", "--model", find_minilm()]
        commands["transformers' Trainer"] += ["--data-dir", glue, "--rows", "64", "--max-steps", "1", "--no-evaluation"]
        commands["transformers' Trainer"] += [*(["--use-cpu"] if cpu else []), "--output-dir"]
        commands["sot_hf.run_glue"] = ["python", "-m", "sot_hf.run_glue", "--model_name_or_path", find_minilm()]
        commands["sot_hf.run_glue"] += ["--task_name", "CoLA", "--data_dir", glue, "--do_train", "--max_steps", "1"]
        commands["sot_hf.run_glue"] += ["--max_train_samples", "64", "--per_device_train_batch_size", "32"]
        commands["sot_hf.run_glue"] += ["--report_to", "none", *(["--use_cpu"] if cpu else []), "--output_dir"]
        found = median_usage({name: in_folder(words) for name, words in commands.items()}, repetitions)
    peers = {"sot_fairseq.train": "fairseq_cli.train", "sot_hf.run_glue": "transformers' Trainer"}
    return [
        {
            "command": name,
            "CPU seconds": found[name].cpu,
            "ratio to the peer": found[name].cpu / found[peers.get(name, name)].cpu,
            "seconds": found[name].wall,
            "peak MiB": found[name].peak,
        }
        for name in commands
    ]


if __name__ == "__main__":
    main()
