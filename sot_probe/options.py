"""The options shared by all ``probe`` commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sot_base.errors import UsageError
from sot_core.names import LAYER_PAIRS
from sot_probe.grid import add_grid_options

__all__ = ["SAVE", "add_probe_options", "resolve_layers"]

SAVE = ("best", "all", "none")


def add_probe_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, in groups."""
    parser.add_argument(
        "--class-weights",
        metavar="WEIGHTS",
        help="weights of the classes in the loss: balanced, or NAME=WEIGHT,... (default: 1)",
    )
    parser.add_argument("--seeds", type=_seed, nargs="+", default=[1, 2, 3], help="one training for each seed [1 2 3]")
    held_out = "share of the training rows on which training settings are chosen; 0: no selection [0.1]"
    parser.add_argument("--held-out", type=_fraction, default=0.1, metavar="SHARE", help=held_out)
    save = "which heads to save as models: the best one on the held-out rows, all (of each seed), or none [best]"
    parser.add_argument("--save", choices=SAVE, default="best", help=save)
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... [a GPU if there is one]")
    store = parser.add_argument_group("store of token states")
    store.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=[-1],
        metavar="LAYER",
        help="layers to store: 0 the embeddings, 1 the first, -1 the last; heads are trained on each of them [-1]",
    )
    several = store.add_mutually_exclusive_group()
    several.add_argument("--mix-layers", action="store_true", help="heads read a learned weighted sum of all --layers")
    several.add_argument(
        "--layer-pair",
        choices=LAYER_PAIRS,
        help="heads read the two --layers A B: words of A and the class token of B (words_cls), or mgcrp's X from A, "
        "its Y and the class token from B (x_y)",
    )
    parser.add_argument(
        "--train-layers",
        type=_positive_int,
        default=0,
        metavar="K",
        help="train the top K layers of the encoder with each head, on the stored states of the layer below them [0]",
    )
    store.add_argument("--cache-dir", type=Path, help="folder of the stored states [$SOT_CACHE/token_states]")
    store.add_argument("--cache-dtype", choices=("float16", "float32"), default="float16", help="precision [float16]")
    add_grid_options(parser)


def resolve_layers(layers: Sequence[int], count: int, train_layers: int = 0) -> list[int]:
    """Numbers of the layers to store; 0 is the embeddings, `count` the last layer.

    Args:
        layers: Layer numbers; negative ones count from the end.
        count: Number of layers of the encoder.
        train_layers: Number of layers from the top that are trained: the layer below them is stored.

    Raises:
        UsageError: for a layer that does not exist or is given twice, or more trained layers than there are.
    """
    if train_layers > count:
        raise UsageError(f"the encoder has {count} layers: --train-layers {train_layers}; give at most {count}")
    if train_layers:
        return [count - train_layers]
    found = [layer + count + 1 if layer < 0 else layer for layer in layers]
    wrong = [given for given, layer in zip(layers, found, strict=True) if not 0 <= layer <= count]
    if wrong:
        raise UsageError(f"no such layer: --layers {wrong[0]}; the encoder has 0 (its embeddings) to {count}")
    if len(set(found)) < len(found):
        raise UsageError(f"a layer is named twice: --layers {' '.join(map(str, layers))}; name each once")
    return found


def _positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}")
    if int(text) >= 2**64:  # what torch takes
        raise argparse.ArgumentTypeError(f"must be below {2**64}, got {text}")
    return int(text)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, got {text}")
    return value
