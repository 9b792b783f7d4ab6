"""Image classification with the second-order head: models, data, training, evaluation.

Importing the package registers its models with timm: ``timm.create_model("sot_tiny")``.
"""

from vision.models import TokenEmbed, attach_head, load_checkpoint, load_published_checkpoint

__all__ = ["TokenEmbed", "attach_head", "load_checkpoint", "load_published_checkpoint"]
