r"""Compare classification heads on frozen encoders over data sets, seeds and numbers of labels.

    python -m benchmarks.heads SST-2 CoLA --data-dir GLUE_DIR --output-dir out/heads
    python -m benchmarks.heads R8 R52 20NG --train-rows 2000 --test-rows 2000 --output-dir out/heads
    python -m benchmarks.heads CIFAR-10 --cifar10 cifar10.tar --output-dir out/heads
    python -m benchmarks.heads SST-2 --data-dir GLUE_DIR --labels 128 512 2048 --output-dir out/heads
    python -m benchmarks.heads --output-dir out/heads --picture heads.png

The first commands train the heads and print the tables of their sets, the last one prints all tables and draws the
picture. ``OUTPUT_DIR/SET.json`` is written after each seed; the same command continues it. Options of heads and of the
training take several values; each head gets the combination with the best metric on held-out training rows. The test
rows are read once for each training, at its end. docs/frozen_encoders.md has the protocol and the results.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers.utils import logging as hf_logging

from benchmarks.heads.datasets import DATA_SETS, heads_of, open_data_set
from benchmarks.heads.fashion_mnist import FOLDER
from benchmarks.heads.report import by_name, draw_accuracy, overview, set_table
from benchmarks.heads.results_file import read_results, results_path
from benchmarks.heads.trainings import measure
from sot_base.errors import UsageError, run_main
from sot_core.names import LAYER_PAIRS
from sot_probe.grid import add_grid_options
from vision.cli.device import command_processes

__all__ = ["heads_parser", "main"]


def heads_parser() -> argparse.ArgumentParser:
    """The parser of ``python -m benchmarks.heads``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads", description=__doc__.split("\n")[0])
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"data sets to measure: {', '.join(DATA_SETS)}")
    parser.add_argument("--output-dir", required=True, type=Path, help="the folder of the files, one for each set")
    parser.add_argument("--reference", default="mgcrp-words", help="the head that the others are compared with")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw accuracy against parameters: .png, .svg, .pdf"
    )
    parser.add_argument("--seeds", type=_count, nargs="+", default=list(range(1, 11)), help="[1 to 10]")
    parser.add_argument("--labels", type=_count, nargs="+", metavar="N", help="so many labels, drawn for each seed")
    parser.add_argument(
        "--held-out", type=_share, default=0.2, help="share of training rows to choose settings on [0.2]"
    )
    data = parser.add_argument_group("data and encoders")
    data.add_argument("--data-dir", help="GLUE's folder, for SST-2 and CoLA")
    data.add_argument("--cifar10", metavar="TAR", help="CIFAR-10 as a tar or a folder of images")
    data.add_argument("--fashion-mnist", metavar="DIR", default=FOLDER, help=f"Fashion-MNIST's files [{FOLDER}]")
    data.add_argument("--train-rows", type=_count, metavar="N", help="use so many training rows; default: all")
    data.add_argument("--test-rows", type=_count, metavar="N", help="use so many test rows; default: all")
    data.add_argument("--text-encoder", default="minilm", help="as --encoder of sot_hf.probe [minilm]")
    data.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=[-1],
        help="layers of the text encoder, of which each head gets the best on the held-out rows [-1]",
    )
    data.add_argument(
        "--pairs", nargs="+", choices=LAYER_PAIRS, default=[], help="also try pairs of two --layers, as --layer-pair"
    )
    data.add_argument("--max-length", type=_count, help="maximum number of tokens of a text [128]")
    data.add_argument("--image-encoder", default="efficientnet_lite0", help="as --model of vision/probe.py")
    data.add_argument("--image-checkpoint", metavar="FILE", help="weights of the image encoder")
    data.add_argument("--img-size", type=_count, help="image height and width in pixels; default: the encoder's")
    data.add_argument("--cache-dir", type=Path, help="folder of the stored states [$SOT_CACHE/token_states]")
    data.add_argument("--device", help="cpu, cuda, cuda:1, ... [a GPU if there is one]")
    add_grid_options(parser)
    parser.set_defaults(
        heads=None,
        lr=[1e-3, 3e-3],
        class_weights=None,
        mix_layers=False,
        layer_pair=None,
        train_layers=0,
        cache_dtype="float16",
    )
    return parser


@command_processes()
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the named sets, and print the tables."""
    args = heads_parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s: %(message)s")
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    unknown = [name for name in args.sets if name not in DATA_SETS]
    if unknown:
        raise UsageError(f"no such data set: {unknown[0]}; use {', '.join(DATA_SETS)}")
    if args.pairs and len(args.layers) != 2:
        raise UsageError(f"--pairs needs two layers: --layers has {len(args.layers)}; give two")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in args.sets:
        own = argparse.Namespace(**{**vars(args), "heads": args.heads or heads_of(name)})
        side = open_data_set(name, own)
        for labels in args.labels or [None]:
            measure(name, own, side, labels)
            paths.append(results_path(args.output_dir, name, labels))
    _report(args, paths or sorted(args.output_dir.glob("*.json")))
    return 0


def _report(args: argparse.Namespace, paths: Sequence[Path]) -> None:
    files = by_name(map(read_results, paths))
    if not files:
        raise UsageError(f"no results: {args.output_dir.absolute()}; name data sets to measure")
    for results in files:
        print(f"\n{set_table(results, args.reference)}")  # noqa: T201
    whole = [own for own in files if own.protocol["labels"] is None]
    for group in (whole, [own for own in files if own.protocol["labels"] is not None]):
        if len(group) > 1:
            print(f"\n{overview(group)}")  # noqa: T201
    if args.picture:
        draw_accuracy(whole or files, args.picture)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text}")
    return int(text)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and below 1, got {text}")
    return value


if __name__ == "__main__":
    run_main(main)
