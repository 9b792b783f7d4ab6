"""Image classification with the second-order head: models, data, training, evaluation.

Importing the package registers its models with timm: ``timm.create_model("sot_tiny")``.
"""

from typing import TYPE_CHECKING, Any

from sot_base.command_help import asked_for_help
from sot_base.garbage import collect_later

if TYPE_CHECKING:
    from vision.probing.image_classifier import ImageClassifier

if not asked_for_help():
    with collect_later():
        from vision.models import TokenEmbed, attach_head, load_checkpoint, load_published_checkpoint

__all__ = ["ImageClassifier", "TokenEmbed", "attach_head", "load_checkpoint", "load_published_checkpoint"]


def __getattr__(name: str) -> Any:
    """Import `ImageClassifier` when it is first asked for: scikit-learn, which it builds on, takes long."""
    if name != "ImageClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vision.probing.image_classifier import ImageClassifier

    return ImageClassifier
