"""Second-order classification heads for transformers: the part that every side of the toolkit imports.

Imports torch and the standard library only.
"""

from sot_core.config import HeadConfig
from sot_core.covariance import cross_covariance
from sot_core.heads import ClassificationHead, Contributions
from sot_core.pooling import GlobalAveragePool, GlobalCovariancePool, MultiheadCrossCovariancePool
from sot_core.power_norm import SingularValuePowerNorm, singular_value_power_norm
from sot_core.published import Classifier, OnlyVisualTokensClassifier
from sot_core.scaling import ElementwisePowerNorm
from sot_core.square_root import matrix_square_root

__version__ = "0.1.0"

__all__ = [
    "ClassificationHead",
    "Classifier",
    "Contributions",
    "ElementwisePowerNorm",
    "GlobalAveragePool",
    "GlobalCovariancePool",
    "HeadConfig",
    "MultiheadCrossCovariancePool",
    "OnlyVisualTokensClassifier",
    "SingularValuePowerNorm",
    "cross_covariance",
    "matrix_square_root",
    "singular_value_power_norm",
]
