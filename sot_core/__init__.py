"""Second-order classification heads for transformers: the part that every side of the toolkit imports.

Imports torch and the standard library only. A name is imported when it is asked for: the command lines read the
head's options from here, and torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sot_core.attentive_pooling import AttentionPool, EfficientProbingPool
    from sot_core.config import HeadConfig
    from sot_core.covariance_pooling import DropCovPool, GlobalCovariancePool, MomentPool
    from sot_core.first_order_pooling import GeneralizedMeanPool, GlobalAveragePool, MaxPool, MeanDeviationPool
    from sot_core.head import ClassificationHead, Contributions
    from sot_core.math.covariance import cross_covariance
    from sot_core.math.square_root import matrix_square_root
    from sot_core.norms.alternatives import ElementwisePowerNorm
    from sot_core.norms.svpn import SingularValuePowerNorm, singular_value_power_norm
    from sot_core.pooling import MultiheadCrossCovariancePool
    from sot_core.published_heads import Classifier, OnlyVisualTokensClassifier

__version__ = "0.1.0"

__all__ = [
    "AttentionPool",
    "ClassificationHead",
    "Classifier",
    "Contributions",
    "DropCovPool",
    "EfficientProbingPool",
    "ElementwisePowerNorm",
    "GeneralizedMeanPool",
    "GlobalAveragePool",
    "GlobalCovariancePool",
    "HeadConfig",
    "MaxPool",
    "MeanDeviationPool",
    "MomentPool",
    "MultiheadCrossCovariancePool",
    "OnlyVisualTokensClassifier",
    "SingularValuePowerNorm",
    "cross_covariance",
    "matrix_square_root",
    "singular_value_power_norm",
]

_PLACES = {
    "AttentionPool": "attentive_pooling",
    "ClassificationHead": "head",
    "Classifier": "published_heads",
    "Contributions": "head",
    "DropCovPool": "covariance_pooling",
    "EfficientProbingPool": "attentive_pooling",
    "ElementwisePowerNorm": "norms.alternatives",
    "GeneralizedMeanPool": "first_order_pooling",
    "GlobalAveragePool": "first_order_pooling",
    "GlobalCovariancePool": "covariance_pooling",
    "HeadConfig": "config",
    "MaxPool": "first_order_pooling",
    "MeanDeviationPool": "first_order_pooling",
    "MomentPool": "covariance_pooling",
    "MultiheadCrossCovariancePool": "pooling",
    "OnlyVisualTokensClassifier": "published_heads",
    "SingularValuePowerNorm": "norms.svpn",
    "cross_covariance": "math.covariance",
    "matrix_square_root": "math.square_root",
    "singular_value_power_norm": "norms.svpn",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _PLACES:
        value = getattr(import_module(f"sot_core.{_PLACES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'sot_core' has no attribute {name!r}")
