"""The head's command-line options, spelled the same on every side of the toolkit.

One table; fairseq's dataclass and the argparse parsers of the other sides are made from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sot_core.config import HeadConfig
from sot_core.names import FEATURE_NORMS, FUSIONS, HEAD_NORMS, NORMALIZATIONS, POOLINGS, PROJECTIONS

__all__ = ["HEAD_OPTIONS", "HeadOption", "add_head_options", "head_settings"]


@dataclass(frozen=True)
class HeadOption:
    """One option of the head.

    Attributes:
        name: Name in a namespace; ``--`` and dashes make the flag.
        field: The field of `HeadConfig` it sets.
        type: Its Python type on the command line.
        help: What it means, with its unit or range.
        choices: The valid values, where it is a name.
        none: The value on the command line that stands for None, where None is meant to be given.
    """

    name: str
    field: str
    type: type
    help: str
    choices: tuple[str, ...] | None = None
    none: str | int | None = None

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        return "--" + self.name.replace("_", "-")

    @property
    def default(self) -> Any:
        """The field's default in `HeadConfig`, as it is typed."""
        default = HeadConfig.__dataclass_fields__[self.field].default
        return self.none if default is None else default


HEAD_OPTIONS = (
    HeadOption("head_pooling", "pooling", str, "pooling of the word tokens", POOLINGS),
    HeadOption(
        "head_fusion",
        "fusion",
        str,
        "how class token and words become logits; cls is the framework's own head, the baseline",
        FUSIONS,
    ),
    HeadOption("head_normalization", "normalization", str, "normalisation of MGCrP's matrices", NORMALIZATIONS),
    HeadOption("head_dropout", "drop_rate", float, "dropout on the pooled words, in [0, 1)"),
    HeadOption("head_projection", "projection", str, "projection before a second-order pooling", PROJECTIONS),
    HeadOption(
        "head_feature_norm",
        "feature_norm",
        str,
        "normalisation of each vector before its classifier; batch_norm has no weight and bias",
        FEATURE_NORMS,
    ),
    HeadOption("mgcrp_heads", "num_heads", int, "heads of MGCrP, of moment (at least 2) and of attention"),
    HeadOption("mgcrp_q", "q_dim", int, "rows of each head's matrix; the width of GCP's and DropCov's projection"),
    HeadOption("mgcrp_k", "k_dim", int, "columns of each head's matrix; default: as --mgcrp-q"),
    HeadOption(
        "mgcrp_center",
        "center",
        str,
        "centring: each channel over the tokens (token), one scalar a head (sample, as published), or none",
        ("token", "sample", "none"),
        none="none",
    ),
    HeadOption("mgcrp_bias", "proj_bias", bool, "give the projection of MGCrP and moment a bias"),
    HeadOption(
        "mgcrp_head_norm",
        "head_norm",
        str,
        "normalisation of each token's features of each head before the covariance of MGCrP, GCP and DropCov",
        HEAD_NORMS,
    ),
    HeadOption("svpn_alpha", "alpha", float, "exponent of svPN, in (0, 1]"),
    HeadOption("svpn_iters", "num_iters", int, "power iterations of svPN for each singular value"),
    HeadOption("svpn_values", "num_singular_values", int, "singular values that svPN finds; 0: all", none=0),
    HeadOption("svpn_eps", "residual_eps", float, "0, or 1e-5 for the published form of svPN"),
    HeadOption("gcp_iters", "gcp_iters", int, "Newton-Schulz iterations of GCP"),
    HeadOption("dropcov_rate", "channel_drop_rate", float, "mean rate of DropCov's channel dropout, in [0, 1)"),
    HeadOption("attention_mlp", "attention_mlp", bool, "an MLP after the attention of the pooling attention"),
    HeadOption("efficient_queries", "num_queries", int, "queries of the pooling efficient; they divide the width"),
)


def add_head_options(parser: argparse.ArgumentParser) -> None:
    """Add the head's options to a parser, in a group of their own."""
    group = parser.add_argument_group("classification head")
    for option in HEAD_OPTIONS:
        if option.type is bool:
            group.add_argument(option.flag, action="store_true", help=option.help)
        else:
            group.add_argument(
                option.flag, type=option.type, choices=option.choices, default=option.default, help=option.help
            )


def head_settings(values: argparse.Namespace | Mapping[str, Any]) -> dict[str, Any]:
    """Read the options from a namespace or mapping into fields of `HeadConfig`; absent ones are left out."""
    mapping = vars(values) if isinstance(values, argparse.Namespace) else values
    settings: dict[str, Any] = {}
    for option in HEAD_OPTIONS:
        if option.name in mapping:
            value = mapping[option.name]
            value = str(value) if option.choices else value  # an enumeration's member is its name
            settings[option.field] = None if option.none is not None and value == option.none else value
    return settings
