"""The names that options of the head may have, without the parts themselves: a command line reads them without torch.

The parts are in the tables of `sot_core.build`, `sot_core.projection` and `sot_core.norms.features`.
"""

from __future__ import annotations

__all__ = [
    "FEATURE_NORMS",
    "FUSIONS",
    "FUSIONS_OF_BOTH",
    "HEAD_NORMS",
    "LAYER_PAIRS",
    "NORMALIZATIONS",
    "POOLINGS",
    "PROJECTIONS",
]

POOLINGS = (
    "mgcrp",
    "gcp",
    "dropcov",
    "moment",
    "gap",
    "mean_std",
    "gem",
    "max",
    "attention",
    "efficient",
)
NORMALIZATIONS = ("svpn", "svpn_exact", "epn", "layer_norm", "scale", "learnable_scale", "none")
FUSIONS = ("sum_fc", "concat", "aggre_all", "sum_loss", "words", "cls")
FUSIONS_OF_BOTH = ("sum_fc", "concat", "aggre_all", "sum_loss")  # of the class token and the words
PROJECTIONS = ("linear", "batch_norm_relu")
HEAD_NORMS = ("none", "layer_norm")
FEATURE_NORMS = ("none", "batch_norm")
LAYER_PAIRS = ("words_cls", "x_y")  # how a head reads two layers, see `sot_core.layer_pair`
