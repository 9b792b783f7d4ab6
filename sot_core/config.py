"""Description of a classification head in plain values, and its reading of the published dictionaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

from sot_core.names import FEATURE_NORMS, HEAD_NORMS
from sot_core.published_form import read_published

__all__ = ["HeadConfig"]

MAX_INTEGER = 2**31  # what torch takes as a size
RATES = ("drop_rate", "cls_pooler_drop_rate", "channel_drop_rate")
OPTIONAL = ("k_dim", "cls_pooler_dim", "num_singular_values")


def _is_integer(value: Any, lowest: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and lowest <= int(value) < MAX_INTEGER


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


KINDS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (
        ("embed_dim", "num_heads", "q_dim", "k_dim", "gcp_iters", "cls_pooler_dim", "num_queries"),
        partial(_is_integer, lowest=1),
        "a positive integer",
    ),
    (("num_classes",), partial(_is_integer, lowest=0), "an integer of at least 0"),
    (("num_iters", "num_singular_values"), partial(_is_integer, lowest=-MAX_INTEGER), "an integer"),
    (("alpha", "residual_eps", *RATES), _is_number, "a number"),
    (
        ("proj_bias", "has_cls_token", "attention_mlp", "two_layers"),
        lambda value: isinstance(value, bool),
        "True or False",
    ),
)


@dataclass(frozen=True)
class HeadConfig:
    """Everything that :class:`~sot_core.head.ClassificationHead` needs to know.

    Args:
        embed_dim: Token width D (> 0).
        num_classes: Classes K (>= 0); 0 returns the pooled features.
        pooling: Pooling of the word tokens: ``mgcrp``, ``gcp``, ``dropcov``, ``moment``, ``gap``, ``mean_std``,
            ``gem``, ``max``, ``attention`` or ``efficient``.
        fusion: How class token and words become logits: ``sum_fc``, ``concat``, ``aggre_all``, ``sum_loss``,
            ``words`` or ``cls``.
        num_heads: Heads of MGCrP (> 0), of ``moment`` (> 1) and of ``attention`` (a divisor of D).
        q_dim: Rows of each head's matrix (> 0); the projection width of GCP and DropCov, a head's of ``moment``.
        k_dim: Columns of each head's matrix (> 0); None: as ``q_dim``.
        center: Centring of the covariance of MGCrP, GCP and DropCov: ``token``, ``sample`` or None.
        normalization: Normalisation of MGCrP's matrices: ``svpn``, ``svpn_exact``, ``epn``, ``layer_norm``,
            ``scale``, ``learnable_scale`` or ``none``.
        alpha: Exponent of svPN, in (0, 1].
        num_iters: Power iterations of svPN for each singular value (>= 1).
        num_singular_values: Singular values svPN finds by iteration (>= 1); None: all.
        residual_eps: 0.0, or 1e-5 for the published form of svPN.
        gcp_iters: Newton-Schulz iterations of GCP (>= 1).
        projection: Projection before a second-order pooling: ``linear`` or ``batch_norm_relu``.
        proj_bias: Whether the linear projection of MGCrP and ``moment`` has a bias.
        drop_rate: Dropout on the pooled words, fraction in [0, 1).
        has_cls_token: Whether index 0 of the tokens is the class token; False needs ``fusion="words"``.
        cls_pooler_dim: Width of a dense layer between the class token and its classifier, as text models have it
            (submodules ``dense`` and ``out_proj``); None: a plain linear layer on the token (``cls_fc``).
        cls_pooler_activation: ``tanh``, ``gelu``, ``relu`` or ``none``, after that dense layer.
        cls_pooler_drop_rate: Dropout before and after that dense layer, fraction in [0, 1).
        head_norm: Normalisation of each token's projected features of each head, before the covariance of MGCrP, GCP
            and DropCov: ``layer_norm`` or ``none``; ``moment`` always has it.
        feature_norm: Normalisation of each vector that enters a classifier: ``batch_norm`` (without weight and bias)
            or ``none``.
        channel_drop_rate: Mean rate of DropCov's channel dropout in training, fraction in [0, 1).
        num_queries: Queries of ``efficient`` (> 0), a divisor of D.
        attention_mlp: Whether an MLP follows the attention of ``attention``.
        two_layers: Whether a token holds the features of two layers of an encoder side by side, D each: MGCrP projects
            X from the first and Y from the second, and the class token is that of the second.

    Raises:
        ValueError: naming the field and the value that is out of range.
    """

    embed_dim: int
    num_classes: int
    pooling: str = "mgcrp"
    fusion: str = "sum_fc"
    num_heads: int = 4
    q_dim: int = 24
    k_dim: int | None = None
    center: str | None = "token"
    normalization: str = "svpn"
    alpha: float = 0.5
    num_iters: int = 1
    num_singular_values: int | None = 1
    residual_eps: float = 0.0
    gcp_iters: int = 5
    projection: str = "linear"
    proj_bias: bool = False
    drop_rate: float = 0.0
    has_cls_token: bool = True
    cls_pooler_dim: int | None = None
    cls_pooler_activation: str = "tanh"
    cls_pooler_drop_rate: float = 0.0
    head_norm: str = "none"
    feature_norm: str = "none"
    channel_drop_rate: float = 0.5
    num_queries: int = 32
    attention_mlp: bool = False
    two_layers: bool = False

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_names()
        if not self.has_cls_token and self.fusion != "words":
            raise ValueError(f"fusion={self.fusion!r} needs a class token, but has_cls_token is False: use 'words'")
        self._check_sizes()
        if self.pooling == "mgcrp" and self.normalization in ("svpn", "svpn_exact"):
            from sot_core.norms.svpn import check_power_norm  # here: a command line has the options without torch

            exact = self.normalization == "svpn_exact"
            check_power_norm(self.alpha, self.num_singular_values, self.num_iters, self.residual_eps, exact)

    def _check_numbers(self) -> None:
        for names, is_right, description in KINDS:
            for name in names:
                value = getattr(self, name)
                if not is_right(value) and not (value is None and name in OPTIONAL):
                    raise ValueError(f"{name} must be {description}, got {value!r}")
        for name in RATES:
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    def _check_sizes(self) -> None:
        divisor = {"attention": "num_heads", "efficient": "num_queries"}.get(self.pooling)
        if divisor is not None and self.embed_dim % getattr(self, divisor):
            raise ValueError(
                f"{divisor} of pooling={self.pooling!r} must divide embed_dim={self.embed_dim}, "
                f"got {getattr(self, divisor)}"
            )
        if self.pooling == "moment" and self.num_heads < 2:
            raise ValueError(f"num_heads of pooling='moment' must be at least 2, got {self.num_heads}")
        if self.two_layers and (self.pooling, self.projection) != ("mgcrp", "linear"):
            raise ValueError(
                "two_layers needs pooling='mgcrp' and projection='linear', "
                f"got {self.pooling!r} and {self.projection!r}"
            )
        if self.two_layers and self.fusion == "cls":
            raise ValueError("two_layers needs word tokens, but fusion='cls' reads the class token alone")

    @property
    def token_dim(self) -> int:
        """Width of the tokens: D, or 2 D with ``two_layers``."""
        return self.embed_dim * (2 if self.two_layers else 1)

    def _check_names(self) -> None:
        from sot_core.build import ACTIVATIONS, FUSIONS, NORMALIZATIONS, POOLINGS  # here: they need torch
        from sot_core.math.covariance import CENTERS
        from sot_core.projection import PROJECTIONS

        choices: tuple[tuple[str, Iterable[str | None]], ...] = (
            ("pooling", POOLINGS),
            ("fusion", FUSIONS),
            ("normalization", NORMALIZATIONS),
            ("projection", PROJECTIONS),
            ("cls_pooler_activation", ACTIVATIONS),
            ("center", CENTERS),
            ("head_norm", HEAD_NORMS),
            ("feature_norm", FEATURE_NORMS),
        )
        for name, names in choices:
            if getattr(self, name) not in tuple(names):
                raise ValueError(f"Unknown {name} {getattr(self, name)!r}, expected one of {list(names)}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **defaults: Any) -> Self:
        """Read a dictionary: the fields of this class, or the form of the published README files.

        The published form is ``{type, fusion_type, args: {dim, num_heads, wr_dim, normalization: {type, alpha,
        iterNum, svNum, regular, input_dim}}}``; ``MGCrP_q``, ``MGCrP_k`` and ``MGCrP_dp`` (one head of q x k and its
        dropout) are read too. The dictionary is not changed, and modules in it become plain values.

        Args:
            values: The dictionary.
            **defaults: Fields for what the dictionary does not say (``num_classes`` above all).

        Raises:
            ValueError: for an unknown key, naming the nearest valid one, or a missing ``embed_dim``/``num_classes``.
        """
        fields = {field.name for field in dataclasses.fields(cls)}
        settings = {**defaults, **read_published(values, fields)}
        for name in ("embed_dim", "num_classes"):
            if name not in settings:
                raise ValueError(f"{name} is missing from the head's dictionary {dict(values)!r}")
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """The fields as a plain dictionary, which :meth:`from_dict` reads."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)
