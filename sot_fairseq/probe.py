r"""Train heads on the cached token states of a frozen encoder.

    python -m sot_fairseq.probe --encoder minilm --task SST-2 --data-dir GLUE_DIR --output-dir out/probe-sst2 \
        --heads cls mgcrp --seeds 1 2 3 4 5
    python -m sot_fairseq.probe --encoder minilm --task CoLA --data-dir GLUE_DIR --output-dir out/probe-cola \
        --heads mgcrp mgcrp-words --mgcrp-heads 1 2 4 8 --lr 1e-3 3e-3

Every run preprocesses the data as ``python -m sot_fairseq.preprocess`` does, into ``OUTPUT_DIR/data``. The first keeps
the encoder's token states in the cache (``--cache-dir``); later ones on the same texts and encoder read them from
there, and an epoch takes seconds on a CPU. Encoder, heads and their start are those of ``fairseq-train
--freeze-backbone``, the training is that of ``glue_scripts`` (8 epochs and batches of 32 unless told otherwise).

Heads: ``cls`` is fairseq's own, the baseline; ``mgcrp``, ``gcp`` and ``gap`` (the mean) join the class token and the
pooled words as ``--head-fusion`` says, as in ``glue_scripts``; ``mgcrp-words``, ``gcp-words`` and ``gap-words`` are the
pooled words alone. Options of the head and of the training take one or more values; every combination is trained.

It writes ``OUTPUT_DIR/results.json``, in the form of ``python -m sot_fairseq.results``, and prints that table:
metrics on the dev splits after each seed's best epoch. The file has those after the last epoch too (``last_epoch``).
A training that fails does not stop the others: it is named with its reason (``failed``), and the exit status is 1.
The best of many settings on a dev set looks better than it is: compare it with the default on other data.

There is one cache entry for each encoder (its checkpoint's content; a ``scratch:`` encoder is drawn once, with seed 1),
texts as token numbers, and ``--cache-dtype``. Entries can be removed at any time.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sot_base.atomic import atomic_file
from sot_base.class_weights import class_weights, parse_class_weights
from sot_base.errors import UsageError, run_main
from sot_fairseq import encoders, preprocess
from sot_fairseq.pretrained.encoder_table import cache_dir
from sot_fairseq.probing.encoding import ProbeTask
from sot_fairseq.probing.grid import ProbeSettings, add_grid_options, grid
from sot_fairseq.probing.token_cache import TokenCache, open_or_create
from sot_fairseq.probing.training import Outcome, ProbeData, ProbeSplit, train_head
from sot_text.results_table import summarize, table

__all__ = ["main"]

logger = logging.getLogger(__name__)

DATA_OPTIONS = ("--task", "--text-columns", "--label-column", "--labels", "--max-length")
DATA_FLAGS = ("--regression", "--multi-label")


def main(arguments: Sequence[str] | None = None) -> int:
    """Preprocess, encode or find the states, train every head with every seed, and print the table.

    Returns:
        The exit status: 1 if some of the trainings failed.
    """
    args = _parser().parse_args(arguments)
    settings = grid(args)
    if args.class_weights is not None:
        parse_class_weights(args.class_weights)
        if args.regression:
            raise UsageError(f"a regression has no classes: --class-weights {args.class_weights}; leave it out")
    encoder = encoders.find(args.encoder)
    preprocess.main([*_data_words(args), "--output-dir", str(args.output_dir / "data"), *encoder.preprocess_args])
    task = ProbeTask(encoder, args.output_dir / "data")
    for setting in settings:
        task.create_head(setting.head_settings)  # a mistake shows before the encoder runs
    cache = _states(task, args)
    data = _probe_data(task, cache, args.class_weights)
    results: dict[str, Any] = {"task": task.header.task, "metric": data.main_metric, "unit": "percent"}
    results |= {"heads": {}, "failed": {}}
    for setting in settings:
        _train(setting, task, cache, data, args, results)
    failed = "; ".join(f"{name} ({reason})" for name, reason in results["failed"].items())
    if not results["heads"]:
        raise UsageError(f"all trainings failed: {failed}; correct the settings")
    print()  # noqa: T201
    print(table({args.output_dir.name: results}))  # noqa: T201
    print(f"\nwrote {args.output_dir / 'results.json'}")  # noqa: T201
    if failed:
        sys.stderr.write(f"error: {len(results['failed'])} trainings failed: {failed}; the others are in the table\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sot_fairseq.probe", description=__doc__.split("\n")[0])
    parser.add_argument("--encoder", required=True, help="a name, a path, or scratch:<layers>x<dim>")
    parser.add_argument("--data-dir", required=True, help="the folder with train.tsv and dev.tsv, or GLUE's folder")
    parser.add_argument(
        "--output-dir", required=True, type=Path, help="the folder for results.json and the binary data"
    )
    parser.add_argument(
        "--class-weights",
        metavar="WEIGHTS",
        help="of the classes in the loss: balanced, or NAME=WEIGHT,... (others: 1)",
    )
    parser.add_argument("--seeds", type=_seed, nargs="+", default=[1, 2, 3], help="one training each [1 2 3]")
    data = parser.add_argument_group("what the files hold, as python -m sot_fairseq.preprocess has it")
    data.add_argument("--task", help="a GLUE task")
    data.add_argument("--text-columns", metavar="A[,B]", help="own data: names of one or two columns")
    data.add_argument("--label-column", help="own data: name of the column with the label")
    data.add_argument("--labels", metavar="X,Y,...", help="own data: the labels in order; by default sorted")
    data.add_argument("--regression", action="store_true", help="own data: the label is a number")
    data.add_argument("--multi-label", action="store_true", help="own data: a cell lists labels, X,Y, or none")
    data.add_argument("--max-length", type=int, help="shorten samples to so many positions, special tokens included")
    cache = parser.add_argument_group("cache of token states")
    cache.add_argument("--cache-dir", type=Path, help="where it lies [$SOT_CACHE/token_states]")
    cache.add_argument("--cache-dtype", choices=("float16", "float32"), default="float16", help="[float16]")
    add_grid_options(parser)
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}")
    if int(text) >= 2**64:  # what torch takes
        raise argparse.ArgumentTypeError(f"must be below {2**64}, got {text}")
    return int(text)


def _data_words(args: argparse.Namespace) -> list[str]:
    """The data's options as arguments for ``python -m sot_fairseq.preprocess``."""
    given = {flag: vars(args)[flag[2:].replace("-", "_")] for flag in (*DATA_OPTIONS, *DATA_FLAGS)}
    words = [word for flag in DATA_OPTIONS if given[flag] is not None for word in (flag, str(given[flag]))]
    return ["--data-dir", args.data_dir, *words, *(flag for flag in DATA_FLAGS if given[flag])]


def _states(task: ProbeTask, args: argparse.Namespace) -> TokenCache:
    """The token states from the cache, or from the encoder."""
    name = f"{task.header.task}-{Path(args.encoder).name}"
    begin = time.perf_counter()
    where = args.cache_dir or cache_dir() / "token_states"
    cache, folder, was_there = open_or_create(where, name, task.describe(), args.cache_dtype, task.encode)
    seconds = time.perf_counter() - begin
    rows = sum(len(split) for split in cache.splits.values())
    tokens = sum(len(split.states) for split in cache.splits.values())
    what = "read from the cache" if was_there else "encoded"
    print(f"token states of {rows} rows, {tokens} tokens, {what} in {seconds:.1f} s: {folder}")  # noqa: T201
    return cache


def _probe_data(task: ProbeTask, cache: TokenCache, weights_option: str | None) -> ProbeData:
    header = task.header
    kind = torch.float32 if header.regression else torch.bool if header.multi_label else torch.int64
    splits = {
        name: ProbeSplit(cache.splits[name], torch.from_numpy(rows.targets).to(kind))
        for name, rows in task.splits.items()
    }
    train = splits.pop("train")
    weights = None
    if weights_option is not None:
        targets = train.targets
        counts = targets.sum(dim=0) if header.multi_label else targets.bincount(minlength=header.num_classes)
        found = class_weights(weights_option, header.labels, counts.tolist(), len(targets), header.multi_label)
        weights = torch.from_numpy(found).float()
    return ProbeData(
        train=train,
        dev={Path(header.splits[name].source).stem: split for name, split in splits.items()},
        metrics=header.metrics,
        main_metric=header.main_metric,
        num_classes=header.num_classes,
        regression=header.regression,
        multi_label=header.multi_label,
        labels=header.labels,
        class_weights=weights,
    )


def _train(
    setting: ProbeSettings,
    task: ProbeTask,
    cache: TokenCache,
    data: ProbeData,
    args: argparse.Namespace,
    results: dict[str, Any],
) -> None:
    """Train a head with every seed; add it to the results and write them."""
    seeds: dict[str, Any] = {}
    for seed in args.seeds:
        try:
            outcome = train_head(
                lambda: task.create_head(setting.head_settings, cache.start), data, setting.training, seed
            )
        except UsageError as error:
            sys.stderr.write(f"{setting.label}, seed {seed} failed: {error}\n")
            results["failed"][f"{setting.label}, seed {seed}"] = str(error)
            continue
        value = next(iter(outcome.best.values()))[data.main_metric]
        print(  # noqa: T201
            f"{setting.label}, seed {seed}: {data.main_metric} {value:.2f} in epoch {outcome.best_epoch}, "
            f"{outcome.seconds:.2f} s an epoch",
            flush=True,
        )
        for message in outcome.warnings:
            logger.warning("%s, seed %d: %s", setting.label, seed, message)
        seeds[str(seed)] = _seed_entry(setting, outcome, args, seed)
    if seeds:
        last = summarize([entry["last_epoch"] for entry in seeds.values()])
        summary = summarize([entry["metrics"] for entry in seeds.values()])
        results["heads"][setting.label] = {"seeds": seeds, "summary": summary, "last_epoch_summary": last}
    with atomic_file(args.output_dir / "results.json") as path:
        path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _seed_entry(setting: ProbeSettings, outcome: Outcome, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    words = ["--encoder", args.encoder, *_data_words(args), "--output-dir", str(args.output_dir)]
    words += ["--seeds", str(seed), *setting.words]
    words += ["--class-weights", args.class_weights] if args.class_weights else []
    words += ["--cache-dir", str(args.cache_dir)] if args.cache_dir else []
    words += ["--cache-dtype", args.cache_dtype] if args.cache_dtype != "float16" else []
    return {
        "metrics": outcome.best,
        "best_epoch": outcome.best_epoch,
        "last_epoch": outcome.last,
        "seconds_per_epoch": round(outcome.seconds, 3),
        "command": shlex.join(["python", "-m", "sot_fairseq.probe", *words]),
    }


if __name__ == "__main__":
    run_main(main)
