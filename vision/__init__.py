"""Image classification with the second-order head: models, data, training, evaluation.

Importing the package registers its models with timm: ``timm.create_model("sot_tiny")``.
"""

from sot_base.command_help import asked_for_help

if not asked_for_help():
    from vision.models import TokenEmbed, attach_head, load_checkpoint, load_published_checkpoint
    from vision.probing.image_classifier import ImageClassifier

__all__ = ["ImageClassifier", "TokenEmbed", "attach_head", "load_checkpoint", "load_published_checkpoint"]
