"""Training on GLUE beside its peers: a step and an evaluation on both text sides, and whole commands.

Parts, chosen by ``--parts``:

- ``step``: a training step of MiniLM on CoLA in Hugging Face: batch, forward, backward, clipping, optimizer. All
  contenders train on the same batches, in the order of the rows. ``plain loop`` is torch's AdamW by default on
  `AutoModelForSequenceClassification`; the floor is its forward and backward pass alone. With ``--head-fusion cls`` the
  toolkit has the peer's weights and, as the table shows, its losses.
- ``evaluate``: the dev set; transformers' Trainer goes by the order of the rows.
- ``fairseq``: a step of a RoBERTa from scratch, over an epoch of each side's own batches.
- ``command``: CPU seconds of whole commands, an epoch each, in processes of their own.

Time is the median over the repetitions, in which contenders take turns: with one CPU thread its CPU time, else wall
time.
"""

from __future__ import annotations

import contextlib
import copy
import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging as hf_logging

import sot_fairseq  # noqa: F401  registers task and criterion
from benchmarks import DEMO_CORPUS
from benchmarks.fairseq_runs import OURS, STOCK, open_run, preprocess_rows, quiet, train_words
from benchmarks.report import Report, Row, benchmark_parser
from benchmarks.stock_trainer import Rows, make_trainer, read_rows
from benchmarks.timing import Turns, clock, in_folder, median_usage, take_turns
from sot_hf.batching import PaddingCollator
from sot_hf.data import TextDataset
from sot_hf.load_config import load_config
from sot_hf.load_model import load_model
from sot_hf.trainer import HeadTrainer
from sot_text.glue import get_task
from sot_text.hyperparameters import get_hyperparameters
from sot_text.minilm import find_minilm

PARTS = ("step", "evaluate", "fairseq", "command")
PLAIN, TRAINER, CLS, MGCRP = "plain loop", "transformers' Trainer", "sot_hf, CLS head", "sot_hf, MGCrP head"
FLOOR = "forward and backward alone"
LR = 2e-5
MGCRP_WORDS = ("--head-fusion", "sum_fc", "--head-pooling", "mgcrp")


@quiet()
def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = benchmark_parser(__doc__, repetitions=3, quick="few rows, no whole commands")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--data-dir", type=Path, default=DEMO_CORPUS, help="with CoLA in it; default: the demo corpus")
    parser.add_argument("--model", default=str(find_minilm()), help="folder of an encoder; default: MiniLM")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=8, help="of a repetition")
    parser.add_argument("--rows", type=int, default=2000, help="training rows of fairseq's epochs and of the commands")
    parser.add_argument("--scratch", default="4x256", metavar="LAYERSxWIDTH", help="fairseq's RoBERTa")
    args = parser.parse_args(argv)
    if args.quick:
        args.parts = [part for part in args.parts if part != "command"]
        args.steps, args.rows, args.repetitions, args.batch_size, args.scratch = 2, 40, 1, 4, "1x16"
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    report = Report(args, f"CoLA, batch {args.batch_size}, median of {args.repetitions}")
    if "step" in args.parts or "evaluate" in args.parts:
        side = HuggingFace(report.device, args)
        if "step" in args.parts:
            report.table("A training step in Hugging Face; ratios to the plain loop", side.steps())
        if "evaluate" in args.parts:
            report.table("Evaluation in Hugging Face; ratios to transformers' Trainer", side.evaluations())
    if "fairseq" in args.parts:
        title = f"A training step in fairseq, RoBERTa {args.scratch} from scratch; ratios to the stock task"
        report.table(title, fairseq_steps(report.device, args))
    if "command" in args.parts:
        report.table("Whole commands in Hugging Face, an epoch", run_glue(report.device, args))
        report.table(f"Whole commands in fairseq, an epoch, RoBERTa {args.scratch}", fairseq_train(report.device, args))
    report.save()


class HuggingFace:
    """The contenders on the Hugging Face side, which train on the same rows.

    Args:
        device: The device.
        args: The command's options.
    """

    def __init__(self, device: torch.device, args: Any) -> None:
        self.device, self.args = device, args
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        folder, count = args.data_dir / "CoLA", (args.steps + 1) * args.batch_size
        self.train = read_rows(folder / "train.tsv", self.tokenizer, count)
        self.valid = read_rows(folder / "dev.tsv", self.tokenizer, count if args.quick else None)
        set_seed(1)
        stock = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2, classifier_dropout=0.0)
        self.models = {PLAIN: stock, TRAINER: copy.deepcopy(stock)}
        task, values = get_task("CoLA"), get_hyperparameters("CoLA", "bert")
        recipe = {"num_heads": values.mgcrp_heads, "q_dim": values.mgcrp_q, "k_dim": values.mgcrp_k}
        for name, head in ((CLS, {"fusion": "cls"}), (MGCRP, recipe)):
            self.models[name], _ = load_model(args.model, load_config(args.model), task, head, {}, train=True)
        _share_weights(stock, self.models[CLS])
        for model in self.models.values():
            model.to(device)
        self.start = {name: copy.deepcopy(model.state_dict()) for name, model in self.models.items()}

    def steps(self) -> list[Row]:
        """Rows of the table of training steps."""
        contenders: dict[str, Callable[[str], tuple[float, list[float]]]] = {
            **{PLAIN: self._plain_loop, FLOOR: self._plain_loop},
            **{TRAINER: self._trainer, CLS: self._trainer, MGCRP: self._trainer},
        }
        turns = Turns({name: [] for name in contenders})
        losses = {}
        for repetition in range(self.args.repetitions):
            for name in sorted(contenders, reverse=repetition % 2 == 1):
                time, losses[name] = contenders[name](name)
                turns[name].append(time)
        return [
            {
                "": name,
                "ms": 1e3 * turns.median(name),
                "ratio": turns.ratio(name, PLAIN),
                "first loss": losses[name][0],
                "last loss": losses[name][-1],
            }
            for name in contenders
        ]

    def _plain_loop(self, name: str) -> tuple[float, list[float]]:
        """Seconds of a step and the losses of all, by hand."""
        model = self.models[PLAIN]
        model.load_state_dict(self.start[PLAIN])
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
        set_seed(1)
        loader = torch.utils.data.DataLoader(
            self.train, batch_size=self.args.batch_size, collate_fn=DataCollatorWithPadding(self.tokenizer)
        )
        losses, times = [], [clock(self.device)]
        for batch in loader:
            loss = model(**batch.to(self.device)).loss
            losses.append(loss.detach())
            loss.backward()
            if name == PLAIN:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            optimizer.zero_grad()
            times.append(clock(self.device))
        return (times[-1] - times[1]) / self.args.steps, [loss.item() for loss in losses]

    def _trainer(self, name: str) -> tuple[float, list[float]]:
        """The same by a Trainer's own loop."""
        model = self.models[name]
        model.load_state_dict(self.start[name])
        losses: list[torch.Tensor] = []
        hook = model.register_forward_hook(lambda _, __, output: losses.append(output.loss.detach()))
        step_clock = _StepClock(self.device)
        with tempfile.TemporaryDirectory() as folder:
            trainer = self._make(name, folder)
            trainer.add_callback(step_clock)
            set_seed(1)
            with contextlib.redirect_stdout(io.StringIO()):
                trainer.train()
        hook.remove()
        times = step_clock.times
        return (times[-1] - times[0]) / (len(times) - 1), [loss.item() for loss in losses]

    def _make(self, name: str, folder: str) -> Any:
        arguments: dict[str, Any] = {
            "output_dir": folder,
            "per_device_train_batch_size": self.args.batch_size,
            "num_train_epochs": 1,
            "learning_rate": LR,
            "lr_scheduler_type": "constant",
            "logging_steps": 1000,
            "save_strategy": "no",
            "train_sampling_strategy": "sequential",
            "use_cpu": self.device.type == "cpu",
        }
        if name == TRAINER:
            return make_trainer(self.models[name], self.tokenizer, self.train, self.valid, **arguments)
        return HeadTrainer(
            model=self.models[name],
            args=TrainingArguments(report_to="none", disable_tqdm=True, **arguments),
            train_dataset=_toolkit_rows(self.train),
            eval_dataset=_toolkit_rows(self.valid),
            data_collator=PaddingCollator(self.tokenizer, 128),
            processing_class=self.tokenizer,
        )

    def evaluations(self) -> list[Row]:
        """Rows of the table of evaluations."""
        with tempfile.TemporaryDirectory() as folder:
            trainers = {name: self._make(name, folder) for name in (TRAINER, CLS, MGCRP)}
            for name, trainer in trainers.items():
                trainer.compute_metrics = None
                self.models[name].load_state_dict(self.start[name])
            steps = {name: trainer.evaluate for name, trainer in trainers.items()}
            with contextlib.redirect_stdout(io.StringIO()):
                losses = {name: trainer.evaluate()["eval_loss"] for name, trainer in trainers.items()}
                turns = take_turns(steps, self.args.repetitions, self.device)
        return [
            {
                "": name,
                "rows": len(self.valid),
                "seconds": turns.median(name),
                "ratio": turns.ratio(name, TRAINER),
                "loss": losses[name],
            }
            for name in trainers
        ]


class _StepClock(TrainerCallback):
    """Notes the time at the end of every step."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.times = device, list[float]()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.times.append(clock(self.device))


def _toolkit_rows(rows: Rows) -> TextDataset:
    encodings = [{name: rows.encodings[name][i] for name in rows.encodings} for i in range(len(rows))]
    return TextDataset(encodings, np.array(rows.labels))


def _share_weights(stock: Any, ours: Any) -> None:
    """Give the toolkit's model of the class token the weights of transformers' BERT, whose head has no dropout here."""
    head = ours.classifier
    head.cls_drop.p = 0.0
    ours.backbone.load_state_dict(stock.bert.state_dict(), strict=False)
    head.dense.load_state_dict(stock.bert.pooler.dense.state_dict())
    head.out_proj.load_state_dict(stock.classifier.state_dict())


def fairseq_steps(device: torch.device, args: Any) -> list[Row]:
    """Rows of the table of fairseq's training steps."""
    layers, width = map(int, args.scratch.split("x"))
    cpu, runs = device.type == "cpu", {}
    with tempfile.TemporaryDirectory() as folder:
        data = preprocess_rows("CoLA", args.data_dir, Path(folder), args.rows, 32)
        contenders = (("stock", STOCK, ()), ("sot_fairseq, CLS head", OURS, ()))
        for name, kind, words in (*contenders, ("sot_fairseq, MGCrP head", OURS, MGCRP_WORDS)):
            runs[name] = open_run(train_words(data, kind, kind, layers, width, args.batch_size, cpu, *words))
        stock = runs["stock"].trainer.model.state_dict()
        runs["sot_fairseq, CLS head"].trainer.model.load_state_dict(stock)
        losses = {name: run.validate()["loss"] for name, run in runs.items()}
        for run in runs.values():
            run.train_epoch(1)  # the first step of a process imports modules
        steps = -(-args.rows // args.batch_size)
        turns = take_turns({name: run.train_epoch for name, run in runs.items()}, args.repetitions, device)
    return [
        {
            "": name,
            "ms": 1e3 * turns.median(name) / steps,
            "ratio": turns.ratio(name, "stock"),
            "padding": run.padding(),
            "loss before": losses[name],
        }
        for name, run in runs.items()
    ]


def run_glue(device: torch.device, args: Any) -> list[Row]:
    """Rows of the table of ``python -m sot_hf.run_glue`` and transformers' Trainer."""
    folder = args.data_dir.resolve() / "CoLA"
    cpu, size = device.type == "cpu", str(args.batch_size)
    peer = ["python", "-m", "benchmarks.stock_trainer", "--model", args.model, "--data-dir", folder]
    peer += ["--rows", str(args.rows), "--batch-size", size, *(["--use-cpu"] if cpu else [])]
    ours = ["python", "-m", "sot_hf.run_glue", "--model_name_or_path", args.model, "--task_name", "CoLA"]
    ours += ["--data_dir", folder, "--do_train", "--do_eval", "--max_train_samples", str(args.rows)]
    ours += ["--per_device_train_batch_size", size, "--num_train_epochs", "1", "--report_to", "none"]
    ours += ["--disable_tqdm", "true", *(["--use_cpu"] if cpu else [])]
    commands = {
        "Trainer": [*peer, "--output-dir"],
        "Trainer, group_by_length": [*peer, "--group-by-length", "--output-dir"],
        "run_glue, CLS head": [*ours, "--head-fusion", "cls", "--output_dir"],
        "run_glue, MGCrP head": [*ours, "--output_dir"],
    }
    found = median_usage({name: in_folder(words) for name, words in commands.items()}, args.repetitions)
    return [
        {
            "": name,
            "CPU seconds": usage.cpu,
            "ratio": usage.cpu / found["Trainer"].cpu,
            "ratio, grouped": usage.cpu / found["Trainer, group_by_length"].cpu,
            "seconds": usage.wall,
            "peak MiB": usage.peak,
        }
        for name, usage in ((name, found[name]) for name in commands)
    ]


def fairseq_train(device: torch.device, args: Any) -> list[Row]:
    """Rows of the table of ``python -m sot_fairseq.train`` and ``fairseq-train``."""
    layers, width = map(int, args.scratch.split("x"))
    with tempfile.TemporaryDirectory() as folder:
        data = preprocess_rows("CoLA", args.data_dir, Path(folder), args.rows, None)
        words = {
            kind: train_words(
                data, kind, kind, layers, width, args.batch_size, device.type == "cpu", "--max-epoch", "1"
            )
            for kind in (STOCK, OURS)
        }
        commands = {
            "fairseq-train": ["python", "-m", "fairseq_cli.train", *words[STOCK], "--save-dir"],
            "sot_fairseq.train, CLS head": ["python", "-m", "sot_fairseq.train", *words[OURS], "--save-dir"],
            "sot_fairseq.train, MGCrP head": [
                "python",
                "-m",
                "sot_fairseq.train",
                *words[OURS],
                *MGCRP_WORDS,
                "--save-dir",
            ],
        }
        found = median_usage({name: in_folder(words) for name, words in commands.items()}, args.repetitions)
    return [
        {
            "": name,
            "CPU seconds": found[name].cpu,
            "ratio": found[name].cpu / found["fairseq-train"].cpu,
            "seconds": found[name].wall,
            "peak MiB": found[name].peak,
        }
        for name in commands
    ]


if __name__ == "__main__":
    main()
