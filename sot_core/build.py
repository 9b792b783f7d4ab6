"""The tables of the poolings, normalisations and fusions by name, and what builds them from a configuration.

A new part is one class and one entry here; configurations, command lines and property tests then know it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import nn

from sot_core.attentive_pooling import AttentionPool, EfficientProbingPool
from sot_core.covariance_pooling import DropCovPool, GlobalCovariancePool, MomentPool
from sot_core.first_order_pooling import GeneralizedMeanPool, GlobalAveragePool, MaxPool, MeanDeviationPool
from sot_core.fusion import AggregateAll, ClsOnly, Concat, Fusion, SumLogits, SumLosses, WordsOnly
from sot_core.norms.alternatives import ElementwisePowerNorm, LearnableScale, RowLayerNorm, Scale
from sot_core.norms.svpn import SingularValuePowerNorm
from sot_core.pooling import MultiheadCrossCovariancePool, Pooling

if TYPE_CHECKING:
    from sot_core.config import HeadConfig  # which reads the names from here

__all__ = ["ACTIVATIONS", "FUSIONS", "NORMALIZATIONS", "POOLINGS", "create_normalization", "create_pooling"]

POOLINGS: dict[str, Callable[[HeadConfig], Pooling]] = {
    "mgcrp": lambda config: MultiheadCrossCovariancePool(
        config.embed_dim,
        config.num_heads,
        config.q_dim,
        config.k_dim,
        norm=create_normalization(config),
        center=config.center,
        projection=config.projection,
        proj_bias=config.proj_bias,
        head_norm=config.head_norm,
        two_layers=config.two_layers,
    ),
    "gcp": lambda config: GlobalCovariancePool(
        config.embed_dim, config.q_dim, config.gcp_iters, config.center, config.projection, config.head_norm
    ),
    "dropcov": lambda config: DropCovPool(
        config.embed_dim, config.q_dim, config.channel_drop_rate, config.center, config.projection, config.head_norm
    ),
    "moment": lambda config: MomentPool(
        config.embed_dim, config.num_heads, config.q_dim, config.projection, config.proj_bias
    ),
    "gap": lambda config: GlobalAveragePool(config.embed_dim),
    "mean_std": lambda config: MeanDeviationPool(config.embed_dim),
    "gem": lambda config: GeneralizedMeanPool(config.embed_dim),
    "max": lambda config: MaxPool(config.embed_dim),
    "attention": lambda config: AttentionPool(config.embed_dim, config.num_heads, config.attention_mlp),
    "efficient": lambda config: EfficientProbingPool(config.embed_dim, config.num_queries),
}

NORMALIZATIONS: dict[str, Callable[[HeadConfig, int], nn.Module]] = {
    "svpn": lambda config, k_dim: SingularValuePowerNorm(
        k_dim, config.alpha, config.num_singular_values, config.num_iters, config.residual_eps
    ),
    "svpn_exact": lambda config, k_dim: SingularValuePowerNorm(k_dim, config.alpha, exact=True),
    "epn": lambda config, k_dim: ElementwisePowerNorm(),
    "layer_norm": lambda config, k_dim: RowLayerNorm(k_dim),
    "scale": lambda config, k_dim: Scale(k_dim**-0.5),
    "learnable_scale": lambda config, k_dim: LearnableScale(),
    "none": lambda config, k_dim: nn.Identity(),
}

FUSIONS: dict[str, type[Fusion]] = {
    "sum_fc": SumLogits,
    "concat": Concat,
    "aggre_all": AggregateAll,
    "sum_loss": SumLosses,
    "words": WordsOnly,
    "cls": ClsOnly,
}

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "gelu": nn.GELU, "relu": nn.ReLU, "none": nn.Identity}


def create_pooling(config: HeadConfig) -> Pooling:
    """The pooling of the word tokens that ``config`` names."""
    return POOLINGS[config.pooling](config)


def create_normalization(config: HeadConfig) -> nn.Module:
    """The normalisation of MGCrP's matrices that ``config`` names."""
    return NORMALIZATIONS[config.normalization](config, config.q_dim if config.k_dim is None else config.k_dim)
