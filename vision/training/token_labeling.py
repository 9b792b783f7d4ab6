"""Token labeling: each patch has a label of its own, beside the label of the image.

Reference: arXiv:2104.10858.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch
from timm.data.mixup import mixup_target
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.data import ImageSet, Source
from vision.models.dense_mixin import DenseOutput
from vision.token_label.dataset import TokenLabelBatch, TokenLabelSet
from vision.token_label.mixup import TokenLabelMixup
from vision.token_label.read_maps import open_label_maps
from vision.token_label.targets import TokenLabelTarget
from vision.training.classification import ClassificationSession
from vision.training.head_task import HeadTask, Mixup
from vision.training.token_label_loss import TokenLabelLoss

__all__ = ["TokenLabelSession", "TokenLabelTask"]


class TokenLabelTask(HeadTask):
    """`HeadTask` for a model that returns a `DenseOutput` in training.

    A classifier whose part of the loss has weight 0 stays as it is: no gradient reaches it.

    Args:
        model: The model; its classifier of patches is ``head.dense_fc``.
        criterion: The loss.
        device: Where the model is.
        grid: Height and width in patches of the model.
        num_classes: Outputs of the model.
        smoothing: Share of all labels that is spread evenly over the classes.
        **kwargs: As `HeadTask`.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: TokenLabelLoss,
        device: torch.device,
        grid: tuple[int, int],
        num_classes: int,
        smoothing: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, criterion, device, **kwargs)
        self.grid, self.num_classes, self.smoothing = grid, num_classes, smoothing
        dense = set(model.head.dense_fc.parameters())
        unused = set() if criterion.dense_weight else dense
        unused |= set() if criterion.cls_weight else set(model.head.parameters()) - dense
        for parameter in unused:
            parameter.requires_grad_(False)

    def make_targets(self, targets: TokenLabelBatch | Tensor) -> TokenLabelTarget | Tensor:
        """Labels of images and patches; without label maps, probabilities (B, K) of class indices (B,)."""
        if isinstance(targets, TokenLabelBatch):
            return targets.targets(self.grid, self.num_classes, self.smoothing)
        if self.mixup is not None:  # it makes probabilities of class indices itself
            return targets
        return mixup_target(targets, self.num_classes, smoothing=self.smoothing)

    def forward(self, input: Tensor, target: TokenLabelTarget | Tensor) -> dict[str, Any]:
        """Loss, class logits and the parts of the loss, see `TokenLabelLoss.parts`; computed in single precision."""
        output: DenseOutput = self.trainable_module(input)
        logits = output.logits if isinstance(output.logits, tuple) else (output.logits,)
        logits = tuple(part.float() for part in logits)
        parts = self.criterion.parts(DenseOutput(logits, output.dense.float(), output.box), target)
        return {"loss": self.criterion.weighted(parts), "output": sum(logits), "parts": parts}


class TokenLabelSession(ClassificationSession):
    """A run of ``vision/train.py --token-label``.

    Attributes:
        grid: Height and width in patches of the model.
    """

    def create_train_set(self, source: Source, args: Namespace) -> ImageSet:
        """The training images, with their label maps where the options name some.

        Raises:
            UsageError: if there are no maps, if they are of other classes, or if an image has none.
        """
        if args.token_label_data is None:
            return ImageSet(source)
        labelled = TokenLabelSet(source, open_label_maps(args.token_label_data, source.class_names))
        labelled.maps.read(source.key(0))
        return labelled

    def create_recipe(self, args: Namespace) -> dict[str, Any]:
        """The recipe of a model that returns the logits of every patch in training."""
        recipe = super().create_recipe(args)
        return {**recipe, "kwargs": {**recipe["kwargs"], "return_dense": True, "mix_token": args.mix_token}}

    def build_model(self, recipe: Mapping[str, Any]) -> nn.Module:
        try:
            return super().build_model(recipe)
        except UsageError as error:
            if isinstance(error.__cause__, OSError):  # weights that cannot be downloaded
                raise
            raise UsageError(f"--token-label: {error}") from error

    def initialize(self, model: nn.Module) -> None:
        """Check ``--token-label-size``; without a loss of patches, set their classifier, which is not trained, to 0."""
        args, img_size = self.args, tuple(self.data_config["input_size"][1:])
        self.grid = model.dense_grid(img_size)
        if args.token_label_size is not None and (args.token_label_size,) * 2 != self.grid:
            right = f"give {self.grid[0]}" if self.grid[0] == self.grid[1] else "leave it out"
            raise UsageError(
                f"--token-label-size {args.token_label_size}: {args.model} has {self.grid[0]}x{self.grid[1]} patches "
                f"at {img_size[0]}x{img_size[1]} pixels; {right}"
            )
        if not args.dense_weight:
            for parameter in model.head.dense_fc.parameters():
                nn.init.zeros_(parameter)

    def create_task(self) -> TokenLabelTask:
        args = self.args
        criterion = TokenLabelLoss(args.dense_weight, args.cls_weight, args.ground_truth, self.class_weights)
        criterion = criterion.to(self.device)
        classes = self.recipe["num_classes"]
        return TokenLabelTask(
            self.model, criterion, self.device, self.grid, classes, args.smoothing, **self.task_options()
        )

    def create_mixup(self) -> Mixup:
        if self.args.token_label_data is None:
            return super().create_mixup()
        return TokenLabelMixup(self.grid, **self.mixup_options())

    def facts(self) -> dict[str, Any]:
        maps = self.args.token_label_data or "none: the data's classes"
        return {**super().facts(), "token_labeling": {"grid": list(self.grid), "label_maps": maps}}
