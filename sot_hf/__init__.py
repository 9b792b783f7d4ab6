"""Second-order classification heads on any Hugging Face encoder or decoder.

Importing this package registers `SoTConfig` and `SoTForSequenceClassification` with transformers' Auto classes.
"""

from typing import TYPE_CHECKING, Any

from sot_base.command_help import asked_for_help
from sot_base.garbage import collect_later
from sot_base.later_import import import_later

if TYPE_CHECKING:
    from sot_hf.text_classifier import TextClassifier

if not asked_for_help():
    with collect_later(), import_later("scipy"):  # only losses of object detectors call it
        from transformers import AutoConfig, AutoModelForSequenceClassification

        from sot_hf.configuration import SoTConfig
        from sot_hf.modeling import SoTForSequenceClassification
        from sot_hf.predictor import TextPredictor

    AutoConfig.register(SoTConfig.model_type, SoTConfig, exist_ok=True)
    AutoModelForSequenceClassification.register(SoTConfig, SoTForSequenceClassification, exist_ok=True)

__all__ = ["SoTConfig", "SoTForSequenceClassification", "TextClassifier", "TextPredictor"]


def __getattr__(name: str) -> Any:
    """Import `TextClassifier` when it is first asked for: scikit-learn, which it builds on, takes long."""
    if name != "TextClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sot_hf.text_classifier import TextClassifier

    return TextClassifier
