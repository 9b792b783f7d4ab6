"""Second-order classification heads for transformers: the part that every side of the toolkit imports.

Imports torch and the standard library only.
"""

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
