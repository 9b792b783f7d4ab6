"""Images and labels: folders, tars, CIFAR, digits; class names; loaders."""

from sot_base.command_help import asked_for_help

if not asked_for_help():
    from vision.data.augment import AnyBatchMixup
    from vision.data.classes import describe, match_classes, names_for_model
    from vision.data.dataset import ImageSet
    from vision.data.images import ImageError, read_image
    from vision.data.loaders import BadImages, Loader, create_eval_loader, create_train_loader, eval_transform
    from vision.data.names import DATASETS, PUBLISHED_DATASETS
    from vision.data.sources import Source, open_source

__all__ = [
    "DATASETS",
    "PUBLISHED_DATASETS",
    "AnyBatchMixup",
    "BadImages",
    "ImageError",
    "ImageSet",
    "Loader",
    "Source",
    "create_eval_loader",
    "create_train_loader",
    "describe",
    "eval_transform",
    "match_classes",
    "names_for_model",
    "open_source",
    "read_image",
]
