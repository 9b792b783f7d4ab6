"""Second-order classification heads on any Hugging Face encoder or decoder.

Importing this package registers `SoTConfig` and `SoTForSequenceClassification` with transformers' Auto classes.
"""

from sot_base.command_help import asked_for_help

if not asked_for_help():
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from sot_hf.configuration import SoTConfig
    from sot_hf.modeling import SoTForSequenceClassification
    from sot_hf.predictor import TextPredictor
    from sot_hf.text_classifier import TextClassifier

    AutoConfig.register(SoTConfig.model_type, SoTConfig, exist_ok=True)
    AutoModelForSequenceClassification.register(SoTConfig, SoTForSequenceClassification, exist_ok=True)

__all__ = ["SoTConfig", "SoTForSequenceClassification", "TextClassifier", "TextPredictor"]
