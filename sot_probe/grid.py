"""The heads and settings of a probe: names of heads, and the grid of option values."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sot_core.names import FUSIONS_OF_BOTH, LAYER_PAIRS, POOLINGS
from sot_core.options import HEAD_OPTIONS, head_settings
from sot_probe.settings import TrainingSettings

__all__ = [
    "HEAD_NAMES",
    "MIXED",
    "ProbeSettings",
    "add_grid_options",
    "fits_pair",
    "grid",
    "head_fields",
    "training_words",
]

MIXED = "mix"
LARGEST = 2**31  # of a whole number
HEAD_NAMES = ("cls", *POOLINGS, *(f"{pooling}-words" for pooling in POOLINGS))
# The options that each head reads; a head is not trained again for values of other options.
USED_BY_ALL = {"head_feature_norm"}
COVARIANCE = {"head_projection", "mgcrp_q", "mgcrp_center", "mgcrp_head_norm"}
USED_BY: dict[str, set[str]] = {
    "mgcrp": COVARIANCE | {"head_normalization", "mgcrp_heads", "mgcrp_k", "mgcrp_bias"},
    "gcp": COVARIANCE | {"gcp_iters"},
    "dropcov": COVARIANCE | {"dropcov_rate"},
    "moment": {"head_projection", "mgcrp_heads", "mgcrp_q", "mgcrp_bias"},
    "gap": set(),
    "mean_std": set(),
    "gem": set(),
    "max": set(),
    "attention": {"mgcrp_heads", "attention_mlp"},
    "efficient": {"efficient_queries"},
}
USED_BY_NORMALIZATION = {
    "svpn": {"svpn_alpha", "svpn_iters", "svpn_values", "svpn_eps"},
    "svpn_exact": {"svpn_alpha"},
}
FUSION = next(str(option.default) for option in HEAD_OPTIONS if option.name == "head_fusion")
TRAINING_OPTIONS = {
    "lr": (float, "peak learning rate"),
    "batch_size": (int, "rows in an update"),
    "epochs": (int, "epochs"),
    "weight_decay": (float, "decoupled weight decay"),
    "encoder_lr_scale": (float, "learning rate of the layers of --train-layers as a multiple of --lr"),
}


@dataclass(frozen=True)
class ProbeSettings:
    """A head and its training settings.

    Attributes:
        head: One of `HEAD_NAMES`.
        label: Name of the head, with the layer and the options of which several values were given.
        options: The options that it reads, by name.
        training: Candidate training settings, of which one is chosen.
        layer: What it reads: the index of a stored layer, `MIXED` for a learned weighted sum of all, or how it reads
            two (`sot_core.names.LAYER_PAIRS`).
    """

    head: str
    label: str
    options: dict[str, Any]
    training: tuple[TrainingSettings, ...]
    layer: int | str = 0

    @property
    def head_settings(self) -> dict[str, Any]:
        """Fields of `HeadConfig`."""
        two_layers = {"two_layers": True} if self.layer == "x_y" else {}
        return head_fields(self.head, self.options) | two_layers

    @property
    def pair(self) -> str | None:
        """How it reads two layers, or None."""
        return self.layer if self.layer in LAYER_PAIRS else None

    @property
    def words(self) -> list[str]:
        """The head's settings as command-line arguments; defaults are left out."""
        defaults = {option.name: option.default for option in HEAD_OPTIONS}
        given = [(name, value) for name, value in self.options.items() if value != defaults[name]]
        return ["--heads", self.head, *(word for name, value in given for word in _flag(name, value))]


def head_fields(head: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `HeadConfig` for one of `HEAD_NAMES`, from options by their names on the command line."""
    if head == "cls":
        return head_settings({**options, "head_fusion": "cls"})
    pooling, _, words = head.partition("-")
    fusion = "words" if words else options.get("head_fusion", FUSION)
    return head_settings({**options, "head_pooling": pooling, "head_fusion": fusion})


def fits_pair(head: str, pair: str) -> bool:
    """Whether one of `HEAD_NAMES` can read a pair of layers: X and Y are MGCrP's, words stand beside a class token."""
    pooling, _, words = head.partition("-")
    return pooling == "mgcrp" if pair == "x_y" else pooling != "cls" and not words


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for heads and training; each takes one or more values."""
    parser.add_argument(
        "--heads",
        nargs="+",
        choices=HEAD_NAMES,
        default=["cls", "mgcrp"],
        metavar="HEAD",
        help=f"one or more of {', '.join(HEAD_NAMES)} [cls mgcrp]",
    )
    training = parser.add_argument_group("training (one or more values each)")
    for name, (kind, text) in TRAINING_OPTIONS.items():
        default = vars(TrainingSettings())[name]
        check = _at_least_zero if name == "weight_decay" else _positive(kind)
        training.add_argument(_dashed(name), type=check, nargs="+", default=[default], help=f"{text} [{default}]")
    head = parser.add_argument_group("classification head (one or more values each)")
    for option in HEAD_OPTIONS:
        if option.name == "head_pooling":  # part of the name of a head
            continue
        choices = FUSIONS_OF_BOTH if option.name == "head_fusion" else option.choices
        text = option.help if option.default is None else f"{option.help} [{option.default}]"
        if option.name == "head_fusion":
            text = f"how class token and words become logits in heads without -words [{option.default}]"
        if option.type is bool:
            head.add_argument(option.flag, action="store_true", help=option.help)
        else:
            head.add_argument(
                option.flag, type=option.type, choices=choices, nargs="+", default=[option.default], help=text
            )


def grid(args: argparse.Namespace, layers: Sequence[int], choose: bool = True) -> list[ProbeSettings]:
    """Every combination of the given values, without repeating a head for options that it does not read.

    Args:
        args: The parsed options.
        layers: Numbers of the stored layers.
        choose: Whether training settings are chosen for each head; otherwise each combination is an entry of its own.
    """
    names = [option.name for option in HEAD_OPTIONS if option.name != "head_pooling"]
    values = {name: _listed(vars(args)[name]) for name in names}
    trainings = {name: _listed(vars(args)[name]) for name in TRAINING_OPTIONS}
    rows = [{}] if choose else _product(trainings)
    places: list[int | str] = list(range(len(layers)))
    if args.mix_layers or args.layer_pair:
        places = [args.layer_pair or MIXED]
    found: dict[str, ProbeSettings] = {}
    for head, place, chosen, row in itertools.product(args.heads, places, _product(values), rows):
        used = _used(head, chosen)
        options = {name: value for name, value in chosen.items() if name in used}
        given = {name: [value] for name, value in row.items()}
        settings = tuple(TrainingSettings(**each) for each in _product({**trainings, **given}))
        varied = [name for name in (*options, *row) if len(set({**values, **trainings}[name])) > 1]
        label = [head, *(word for name in varied for word in _flag(name, {**chosen, **row}[name]))]
        label += ["--layers", str(layers[place])] if isinstance(place, int) and len(places) > 1 else []
        found.setdefault(" ".join(label), ProbeSettings(head, " ".join(label), options, settings, place))
    return list(found.values())


def training_words(settings: TrainingSettings) -> list[str]:
    """The training's settings as command-line arguments; defaults are left out."""
    defaults = vars(TrainingSettings())
    given = [(name, value) for name, value in vars(settings).items() if value != defaults[name]]
    return [word for name, value in given for word in _flag(name, value)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _product(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def _used(head: str, chosen: Mapping[str, Any]) -> set[str]:
    """Names of the options that a head reads."""
    if head == "cls":
        return USED_BY_ALL
    pooling, _, words = head.partition("-")
    used = USED_BY_ALL | {"head_dropout"} | USED_BY[pooling] | (set() if words else {"head_fusion"})
    return used | (USED_BY_NORMALIZATION.get(chosen["head_normalization"], set()) if pooling == "mgcrp" else set())


def _flag(name: str, value: Any) -> list[str]:
    return [_dashed(name)] if value is True else [_dashed(name), str(value)]


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def _positive(kind: type) -> Any:
    def positive(text: str) -> Any:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        if kind is int and value >= LARGEST:
            raise argparse.ArgumentTypeError(f"must be below {LARGEST}, got {text}")
        return value

    positive.__name__ = f"positive {kind.__name__}"
    return positive


def _at_least_zero(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return value
