"""A trained classifier that makes the label maps of token labeling."""

from __future__ import annotations

import math
from argparse import Namespace

import numpy as np
import torch
from torch import Tensor, nn

from vision.cli.device import memory_format
from vision.evaluation.load_trained import TrainedModel
from vision.token_label.place_scores import PlaceScores
from vision.token_label.read_maps import LabelMap

__all__ = ["Teacher"]


class Teacher:
    """Turns batches of images into their label maps.

    Args:
        args: The options of ``vision/generate_label.py``.
        trained: The classifier.
        class_index: (K,) its index of each of the data's classes.
        device: Where the model is.

    Attributes:
        grid: Height and width of the maps.
        data_config: timm's description of the images.
    """

    def __init__(self, args: Namespace, trained: TrainedModel, class_index: np.ndarray, device: torch.device) -> None:
        self.data_config, self._autocast = trained.data_config, trained.autocast
        scores = PlaceScores(trained.model)
        with self._autocast():
            self.grid = scores.find_grid(self.data_config["input_size"], trained.num_classes, device)
        self._scores: nn.Module = torch.compile(scores) if args.compile else scores
        self._top_k, self._centred = min(args.top_k, len(class_index)), args.scores == "centred"
        self._memory_format = memory_format(args.channels_last)
        self._class_index = torch.from_numpy(class_index).to(device)

    @torch.inference_mode()
    def label(self, images: Tensor) -> LabelMap:
        """The maps of images, on the CPU: scores in half precision, class indices of the data."""
        with self._autocast():
            scores = self._scores(images.contiguous(memory_format=self._memory_format))
        scores = scores[:, self._class_index].float()
        best, classes = scores.topk(self._top_k, dim=1)
        if self._centred and self._top_k < scores.shape[1]:
            rest = scores.scatter(1, classes, -torch.inf).logsumexp(dim=1, keepdim=True)
            best = best - (rest - math.log(scores.shape[1] - self._top_k))
        return LabelMap(best.half().cpu(), classes.cpu())
