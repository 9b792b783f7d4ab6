"""The heads and settings of a probe: names of heads, and the grid that lists of option values span."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sot_core.build import FUSIONS, POOLINGS
from sot_core.options import HEAD_OPTIONS, head_settings
from sot_fairseq.probing.training import TrainingSettings

__all__ = ["HEAD_NAMES", "ProbeSettings", "add_grid_options", "grid"]

HEAD_NAMES = ("cls", *POOLINGS, *(f"{pooling}-words" for pooling in POOLINGS))
USED_BY_ALL = {"head_feature_norm"}  # what each pooling reads of the head's options
COVARIANCE = {"head_projection", "mgcrp_q", "mgcrp_center", "mgcrp_head_norm"}
USED_BY: dict[str, set[str]] = {
    "mgcrp": COVARIANCE | {"head_normalization", "mgcrp_heads", "mgcrp_k", "mgcrp_bias", "mgcrp_recompute"},
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
TRAINING_OPTIONS = {
    "lr": (float, "peak learning rate"),
    "batch_size": (int, "rows in an update"),
    "epochs": (int, "epochs"),
    "weight_decay": (float, "decoupled weight decay"),
}


@dataclass(frozen=True)
class ProbeSettings:
    """A head and how it is trained.

    Attributes:
        head: One of `HEAD_NAMES`.
        label: The head's name, and those of its options that have several values.
        options: The options that play a part in it, by name.
        training: How it is trained.
    """

    head: str
    label: str
    options: dict[str, Any]
    training: TrainingSettings

    @property
    def head_settings(self) -> dict[str, Any]:
        """Fields of `HeadConfig`."""
        if self.head == "cls":
            return head_settings({**self.options, "head_fusion": "cls"})
        pooling, _, words = self.head.partition("-")
        fusion = "words" if words else self.options["head_fusion"]
        return head_settings({**self.options, "head_pooling": pooling, "head_fusion": fusion})

    @property
    def words(self) -> list[str]:
        """The settings as command-line arguments; defaults are left out."""
        words = ["--heads", self.head]
        defaults = {option.name: option.default for option in HEAD_OPTIONS} | vars(TrainingSettings())
        for name, value in {**self.options, **vars(self.training)}.items():
            if value != defaults[name]:
                words += _flag(name, value)
        return words


def add_grid_options(parser: argparse.ArgumentParser) -> None:
    """Add heads, the head's options and the training's; each takes one or more values."""
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
    both = [name for name, fusion in FUSIONS.items() if fusion.uses_words and (fusion.uses_cls or fusion.pools_cls)]
    for option in HEAD_OPTIONS:
        if option.name == "head_pooling":  # the heads' names say it
            continue
        choices = both if option.name == "head_fusion" else option.choices
        text = option.help if option.default is None else f"{option.help} [{option.default}]"
        if option.name == "head_fusion":
            text = f"how class token and words become logits in heads without -words [{option.default}]"
        if option.type is bool:
            head.add_argument(option.flag, action="store_true", help=option.help)
        else:
            head.add_argument(
                option.flag, type=option.type, choices=choices, nargs="+", default=[option.default], help=text
            )


def grid(args: argparse.Namespace) -> list[ProbeSettings]:
    """Every combination of the values given, once: a head is not trained again for an option it does not read."""
    names = [option.name for option in HEAD_OPTIONS if option.name != "head_pooling"] + list(TRAINING_OPTIONS)
    values = {name: vars(args)[name] if isinstance(vars(args)[name], list) else [vars(args)[name]] for name in names}
    found: dict[str, ProbeSettings] = {}
    for head in args.heads:
        for combination in itertools.product(*values.values()):
            chosen = dict(zip(values, combination, strict=True))
            used = _used(head, chosen)
            options = {name: value for name, value in chosen.items() if name in used}
            training = TrainingSettings(**{name: chosen[name] for name in TRAINING_OPTIONS})
            varied = [name for name in (*options, *TRAINING_OPTIONS) if len(set(values[name])) > 1]
            label = " ".join([head, *(word for name in varied for word in _flag(name, chosen[name]))])
            found.setdefault(label, ProbeSettings(head, label, options, training))
    return list(found.values())


def _used(head: str, chosen: Mapping[str, Any]) -> set[str]:
    """Names of the options that the head reads."""
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
        return value

    positive.__name__ = f"positive {kind.__name__}"
    return positive


def _at_least_zero(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return value
