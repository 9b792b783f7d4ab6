"""The command line of a probe: encode or read the states, choose settings, train, evaluate, save, and print a table.

``OUTPUT_DIR/results.json`` has for each head the metrics of each seed with their mean, deviation and median, the chosen
settings, the number of parameters, the seconds, and the command that repeats the training. A training that fails does
not stop the others: it is listed with the reason under ``failed``, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from sot_base.atomic import atomic_file
from sot_base.class_weights import parse_class_weights
from sot_base.device import choose_device
from sot_base.download.file import cache_dir
from sot_base.errors import UsageError
from sot_base.markdown import markdown_table
from sot_base.summary import summarize
from sot_probe.experiment import Choice, Experiment, SeedResult
from sot_probe.grid import MIXED, ProbeSettings, fits_pair, grid, training_words
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Kind, Objective, as_targets, weigh_classes
from sot_probe.store import Store, open_or_create
from sot_probe.store_writer import StateEncoder
from sot_probe.trainee import Optimize, TrainingSettings
from sot_probe.training import Split

__all__ = ["ProbeSide", "check_options", "open_experiment", "read_states", "run_probe"]

logger = logging.getLogger(__name__)


class ProbeSide(Protocol):
    """What fairseq, Hugging Face or timm contribute to a probe.

    Attributes:
        command: How the probe is started, for the commands in ``results.json``.
        words: Options of this side as command-line arguments.
        name: Name of the entry in the store.
        task: Name of the data.
        layers: Numbers of the stored layers.
        kind: Kind of the targets.
        labels: Names of the classes; empty for regression.
        num_classes: Width of the logits.
        targets: The targets of each split. The first split is for training, the others for evaluation.
        main_metric: The metric by which settings and heads are chosen.
        optimize: Creates the optimizer.
    """

    command: Sequence[str]
    words: Sequence[str]
    name: str
    task: str
    layers: Sequence[int]
    kind: Kind
    labels: Sequence[str]
    num_classes: int
    targets: Mapping[str, np.ndarray]
    main_metric: str
    optimize: Optimize

    def describe(self) -> dict[str, Any]:
        """Everything that the token states depend on, except layers and precision."""

    def create_encoder(self) -> StateEncoder:
        """Load the encoder."""

    def create_head(self, settings: Mapping[str, Any], start: Mapping[str, Tensor]) -> nn.Module:
        """Create a head from fields of `HeadConfig` and its initial weights."""

    def create_top_layers(self, count: int) -> nn.Module:
        """Copy the encoder's top layers, in a module of (states of the layer below, padding mask) that returns both."""

    def measure(self, predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Metrics in percent."""

    def warnings(self, predictions: np.ndarray, targets: np.ndarray, where: str) -> list[str]:
        """Problems that metrics do not show, such as constant predictions."""

    def save_model(self, head: LayerHead, setting: ProbeSettings, folder: Path) -> None:
        """Write a model that the other commands of this side can read."""


def check_options(args: argparse.Namespace, regression: bool = False) -> None:
    """Check options that exclude each other, before any data is read.

    Raises:
        UsageError: for malformed class weights, class weights in regression, or layers beside ``--train-layers``.
    """
    if args.train_layers and (args.layers != [-1] or args.mix_layers or args.layer_pair):
        option = "--mix-layers" if args.mix_layers else "--layer-pair" if args.layer_pair else "--layers"
        raise UsageError(f"--train-layers stores the layer below the trained ones: {option}; leave out one of them")
    if not args.train_layers and args.encoder_lr_scale != [TrainingSettings().encoder_lr_scale]:
        raise UsageError(
            "no layer of the encoder is trained: --encoder-lr-scale; give --train-layers K, or leave it out"
        )
    if args.class_weights is not None:
        parse_class_weights(args.class_weights)
        if regression:
            raise UsageError(f"a regression has no classes: --class-weights {args.class_weights}; leave it out")


def run_probe(args: argparse.Namespace, side: ProbeSide) -> int:
    """Run a probe and print its table.

    Args:
        args: The options of `sot_probe.options.add_probe_options`, and ``output_dir``.
        side: What is probed.

    Returns:
        The exit status: 1 if some of the trainings failed.

    Raises:
        UsageError: if all trainings failed; before the encoder runs, for settings out of range or a mix of one layer.
    """
    _check_layers(args, len(side.layers))
    settings = grid(args, side.layers, choose=args.held_out > 0)
    for setting in settings:
        side.create_head(setting.head_settings, {})  # reports mistakes before the encoder runs
    top_layers = side.create_top_layers(args.train_layers) if args.train_layers else None
    args.output_dir.mkdir(parents=True, exist_ok=True)  # here: before anything that takes long
    store = read_states(args, side)
    experiment = open_experiment(args, side, store, top_layers)
    results: dict[str, Any] = {"task": side.task, "metric": side.main_metric, "unit": "percent"}
    results |= {"heads": {}, "failed": {}}
    report = _Report(args, side, results)
    chosen = experiment.choose(settings, args.seeds[0])
    usable = [(setting, choice) for setting, choice in zip(settings, chosen, strict=True) if not choice.failed]
    for setting, choice in zip(settings, chosen, strict=True):
        if choice.failed:
            report.fail(setting.label, choice.failed)
    settings, choices = [setting for setting, _ in usable], [choice for _, choice in usable]
    models: dict[str, LayerHead] = {}
    for seed, found in experiment.train_seeds(settings, choices, args.seeds):
        for setting, choice, result in zip(settings, choices, found, strict=True):
            report.add(setting, choice, seed, result)
            if not result.outcome.failed and (args.save == "all" or seed == args.seeds[0]):
                models[f"{setting.label}\n{seed}"] = result.outcome.head
        report.write()
    if not results["heads"]:
        raise UsageError(f"all trainings failed: {report.failed}; correct the settings")
    print(f"\n{report.table()}")  # noqa: T201
    _save(args, side, settings, models, report)
    report.write()
    print(f"\nwrote {args.output_dir / 'results.json'}")  # noqa: T201
    if results["failed"]:
        count = len(results["failed"])
        sys.stderr.write(f"error: {count} trainings failed: {report.failed}; the others are in the table\n")
    return 1 if results["failed"] else 0


def read_states(args: argparse.Namespace, side: ProbeSide) -> Store:
    """Read the token states from the store; run the encoder if they are not there.

    Args:
        args: Options with ``cache_dir`` and ``cache_dtype``.
        side: What is probed.
    """
    begin = time.perf_counter()
    store = open_or_create(
        args.cache_dir or cache_dir() / "token_states",
        side.name,
        {**side.describe(), "layers": list(side.layers)},
        args.cache_dtype,
        side.create_encoder,
        lambda text: print(text, flush=True),  # noqa: T201
    )
    rows = sum(len(split) for split in store.splits.values())
    tokens = sum(int(split.lengths.sum()) for split in store.splits.values())
    what = "read from the cache, no encoder was run," if store.was_there else "encoded"
    seconds = time.perf_counter() - begin
    print(f"token states of {rows} rows, {tokens} tokens, {what} in {seconds:.1f} s: {store.folder}")  # noqa: T201
    return store


def open_experiment(
    args: argparse.Namespace, side: ProbeSide, store: Store, top_layers: nn.Module | None = None
) -> Experiment:
    """The data and the protocol of a probe.

    Args:
        args: Options with ``class_weights``, ``held_out`` and ``device``.
        side: What is probed.
        store: Its token states.
        top_layers: The layers of the encoder that are trained with each head; None: heads alone.
    """
    splits = {name: Split(store.splits[name], as_targets(values, side.kind)) for name, values in side.targets.items()}
    train = splits.pop(next(iter(splits)))
    weights = None
    if args.class_weights is not None:
        weights = weigh_classes(args.class_weights, side.labels, train.targets, side.kind)
    return Experiment(
        train=train,
        dev=splits,
        objective=Objective(side.kind, side.num_classes, weights),
        measure=side.measure,
        main_metric=side.main_metric,
        create_head=lambda settings: side.create_head(settings, store.start),
        held_out=args.held_out,
        optimize=side.optimize,
        device=choose_device(args.device),
        top_layers=top_layers,
    )


def _check_layers(args: argparse.Namespace, count: int) -> None:
    """Check the number of stored layers.

    Raises:
        UsageError: for a mix of fewer than two, a pair of another number than two, or a head that cannot read a pair.
    """
    if args.mix_layers and count < 2:
        raise UsageError("--mix-layers needs several layers: --layers has one; give more")
    if args.layer_pair and count != 2:
        raise UsageError(f"--layer-pair needs two layers: --layers has {count}; give two")
    unfit = [head for head in args.heads if args.layer_pair and not fits_pair(head, args.layer_pair)]
    if unfit:
        heads = (
            "mgcrp or mgcrp-words" if args.layer_pair == "x_y" else "heads with class token and words, such as mgcrp"
        )
        raise UsageError(f"not for --layer-pair {args.layer_pair}: --heads {unfit[0]}; give {heads}")


class _Report:
    """Collects results, writes ``results.json`` and prints progress."""

    def __init__(self, args: argparse.Namespace, side: ProbeSide, results: dict[str, Any]) -> None:
        self.args, self.side, self.results = args, side, results

    @property
    def failed(self) -> str:
        """The failed trainings in one line."""
        return "; ".join(f"{name} ({reason})" for name, reason in self.results["failed"].items())

    def fail(self, name: str, reason: str) -> None:
        sys.stderr.write(f"{name} failed: {reason}\n")
        self.results["failed"][name] = reason

    def add(self, setting: ProbeSettings, choice: Choice, seed: int, result: SeedResult) -> None:
        """Add a training."""
        outcome, name = result.outcome, f"{setting.label}, seed {seed}"
        if outcome.failed:
            self.fail(name, outcome.failed)
            return
        metric = self.side.main_metric
        value = next(iter(result.metrics.values()))[metric]
        print(f"{name}: {metric} {value:.2f} in epoch {outcome.best_epoch}, {outcome.seconds:.2f} s", flush=True)  # noqa: T201
        for split, predictions in outcome.predictions.items():
            for message in self.side.warnings(predictions, self.side.targets[split], f"split {split!r}"):
                logger.warning("%s: %s", name, message)
        head = self.results["heads"].setdefault(setting.label, {"seeds": {}})
        head["parameters"] = outcome.parameters
        chosen = {**vars(choice.settings), "held_out": choice.score}
        if not self.args.train_layers:
            del chosen["encoder_lr_scale"]
        head["chosen"] = chosen
        head["seeds"][str(seed)] = {
            "metrics": result.metrics,
            "best_epoch": outcome.best_epoch,
            **({"last_epoch": outcome.history[-1]} if outcome.history else {}),
            "seconds": round(outcome.seconds, 3),
            "command": shlex.join(self._command(setting, choice, seed)),
        }

    def _command(self, setting: ProbeSettings, choice: Choice, seed: int) -> list[str]:
        args = self.args
        words = [*self.side.command, *self.side.words, "--output-dir", str(args.output_dir), "--seeds", str(seed)]
        words += [*setting.words, *training_words(choice.settings)]
        layers = [self.side.layers[setting.layer]] if isinstance(setting.layer, int) else self.side.layers
        words += ["--mix-layers"] if setting.layer == MIXED else []
        words += ["--layer-pair", setting.pair] if setting.pair else []
        words += ["--layers", *map(str, layers)] if args.layers != [-1] else []
        words += ["--train-layers", str(args.train_layers)] if args.train_layers else []
        words += ["--class-weights", args.class_weights] if args.class_weights else []
        for name, default in (("held_out", 0.1), ("cache_dir", None), ("cache_dtype", "float16"), ("device", None)):
            value = vars(args)[name]
            words += [f"--{name.replace('_', '-')}", str(value)] if value != default else []
        return words

    def write(self) -> None:
        """Write ``results.json`` with the results so far."""
        for head in self.results["heads"].values():
            seeds = list(head["seeds"].values())
            head["summary"] = summarize([entry["metrics"] for entry in seeds])
            if all("last_epoch" in entry for entry in seeds):
                head["last_epoch_summary"] = summarize([entry["last_epoch"] for entry in seeds])
        with atomic_file(self.args.output_dir / "results.json") as path:
            path.write_text(json.dumps(self.results, indent=2) + "\n", encoding="utf-8")

    def table(self) -> str:
        """The table: for each head the metrics over the seeds, its parameters and the seconds of a training."""
        rows = [("task", "split", "metric", "head", "n", "mean", "std", "parameters", "seconds")]
        for label, head in self.results["heads"].items():
            spent = [entry["seconds"] for entry in head["seeds"].values()]
            cost = (f"{head['parameters']:,}", f"{sum(spent) / len(spent):.1f}")
            for split, metrics in head["summary"].items():
                for metric, values in metrics.items():
                    std = "-" if values["std"] is None else f"{values['std']:.2f}"
                    numbers = (str(values["n"]), f"{values['mean']:.2f}", std)
                    rows.append((self.results["task"], split, metric, label, *numbers, *cost))
        return markdown_table(rows)

    def best_label(self) -> str:
        """The best head of the first seed, on the held-out rows or, without any, on the first dev split."""
        seed = str(self.args.seeds[0])

        def score(label: str) -> float:
            head = self.results["heads"][label]
            if head["chosen"]["held_out"] is not None:
                return float(head["chosen"]["held_out"])
            return float(next(iter(head["seeds"][seed]["metrics"].values()))[self.side.main_metric])

        trained: list[str] = [label for label, head in self.results["heads"].items() if seed in head["seeds"]]
        return max(trained, key=score)


def _save(
    args: argparse.Namespace,
    side: ProbeSide,
    settings: Sequence[ProbeSettings],
    models: Mapping[str, LayerHead],
    report: _Report,
) -> None:
    """Write the models that ``--save`` names."""
    if args.save == "none" or not models:
        return
    by_label = {setting.label: setting for setting in settings}
    if args.save == "all":
        wanted = {key: args.output_dir / "models" / _folder_name(*key.split("\n")) for key in models}
    else:
        wanted = {f"{report.best_label()}\n{args.seeds[0]}": args.output_dir / "model"}
    for key, folder in wanted.items():
        label, seed = key.split("\n")
        side.save_model(models[key], by_label[label], folder)
        report.results["heads"][label]["seeds"][seed]["model"] = str(folder)
        print(f"model: {label}, seed {seed}: {folder}")  # noqa: T201


def _folder_name(label: str, seed: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', label)}/seed-{seed}"
