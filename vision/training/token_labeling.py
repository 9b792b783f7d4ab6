"""Token labeling in a run: what its options ask of the model and the data, and how batches become targets.

Reference: arXiv:2104.10858.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timm.data.mixup import mixup_target
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.data import ImageSet, Source
from vision.token_label.dataset import TokenLabelBatch, TokenLabelSet
from vision.token_label.read_maps import open_label_maps
from vision.token_label.targets import TokenLabelTarget

__all__ = ["TokenLabeling", "create_token_labeling", "dense_recipe", "label_images", "resolve_token_labeling"]

_OPTIONS = ("token_label_data", "token_label_size", "dense_weight", "cls_weight", "ground_truth", "mix_token")


@dataclass(frozen=True)
class TokenLabeling:
    """How the batches of a run become targets.

    Attributes:
        grid: Height and width in patches of the model.
        num_classes: Outputs of the model.
        smoothing: Share of all labels that is spread evenly over the classes.
        maps: Where the label maps are; None: images have the data's classes alone.
    """

    grid: tuple[int, int]
    num_classes: int
    smoothing: float
    maps: str | None

    def targets(self, batch: TokenLabelBatch | Tensor) -> TokenLabelTarget | Tensor:
        """Labels of images and patches; without maps, probabilities (B, K) of class indices (B,)."""
        if isinstance(batch, TokenLabelBatch):
            return batch.targets(self.grid, self.num_classes, self.smoothing)
        return mixup_target(batch, self.num_classes, smoothing=self.smoothing)

    def facts(self) -> dict[str, Any]:
        """What there is to say of it, in plain values."""
        return {"grid": list(self.grid), "label_maps": self.maps or "none: the data's classes"}


def resolve_token_labeling(args: Namespace) -> None:
    """Fill in the weights of the losses.

    Raises:
        UsageError: for options that contradict each other.
    """
    set_by_us = {"return_dense", "mix_token"} & args.model_kwargs.keys()
    if set_by_us:
        raise UsageError(
            f"--model-kwargs {min(set_by_us)} is for token labeling: give --token-label, and --mix-token or "
            "--no-mix-token, instead"
        )
    if not args.token_label:
        values = {name.replace("_", "-"): getattr(args, name) for name in _OPTIONS}
        given = [name for name, value in values.items() if value is not None and value is not False]
        given += ["no-mix-token"] if args.mix_token is False else []
        if given:
            raise UsageError(f"--{given[0]} is for token labeling: add --token-label, or leave it out")
        return
    args.dense_weight = 0.5 if args.dense_weight is None else args.dense_weight
    args.cls_weight = 1.0 if args.cls_weight is None else args.cls_weight
    if not args.dense_weight and not args.cls_weight:
        raise UsageError("--dense-weight 0 and --cls-weight 0 leave nothing to learn; give one of them")
    if args.token_label_data is None and args.dense_weight:
        raise UsageError(
            "--token-label has no label maps; give them as --token-label-data LABELS, or --dense-weight 0 to learn the "
            "data's classes alone"
        )
    if args.token_label_data is None and args.ground_truth:
        raise UsageError("--ground-truth mixes the data's classes into label maps; give --token-label-data LABELS")


def dense_recipe(recipe: Mapping[str, Any], args: Namespace) -> dict[str, Any]:
    """The recipe of the model that gives logits of every patch in training, see `vision.models.build.build_model`."""
    args.mix_token = args.mix_token is not False
    return {**recipe, "kwargs": {**recipe["kwargs"], "return_dense": True, "mix_token": args.mix_token}}


def label_images(source: Source, args: Namespace) -> ImageSet:
    """The training images, with their label maps where the options name some.

    Raises:
        UsageError: if there are none, if they are of other classes, or if an image has none.
    """
    if args.token_label_data is None:
        return ImageSet(source)
    labelled = TokenLabelSet(source, open_label_maps(args.token_label_data, source.class_names))
    labelled.maps.read(source.key(0))
    return labelled


def create_token_labeling(
    args: Namespace, model: nn.Module, num_classes: int, img_size: Sequence[int]
) -> TokenLabeling | None:
    """How the batches of a run become targets; None without ``--token-label``.

    Args:
        args: The options.
        model: The new model. Where the patches' loss has weight 0, its classifier of patches is set to 0, for nothing
            will train it; weights to start from come later.
        num_classes: Its outputs.
        img_size: Height and width of the images in pixels.

    Raises:
        UsageError: if ``--token-label-size`` is not the model's, with the right number.
    """
    if not args.token_label:
        return None
    grid = model.dense_grid(tuple(img_size))
    if args.token_label_size is not None and (args.token_label_size,) * 2 != grid:
        right = f"give {grid[0]}" if grid[0] == grid[1] else "leave it out"
        raise UsageError(
            f"--token-label-size {args.token_label_size}: {args.model} has {grid[0]}x{grid[1]} patches at "
            f"{img_size[0]}x{img_size[1]} pixels; {right}"
        )
    if not args.dense_weight:
        for parameter in model.head.dense_fc.parameters():
            nn.init.zeros_(parameter)
    return TokenLabeling(grid, num_classes, args.smoothing, args.token_label_data)
