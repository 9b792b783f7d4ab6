"""An image classifier with scikit-learn's interface: a trained head on a frozen model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from sot_base.device import choose_device
from sot_base.errors import UsageError
from sot_probe.estimator import HeadClassifier
from sot_probe.estimator_input import as_layers
from sot_probe.layer_head import LayerHead
from sot_probe.row_cache import RowCache
from sot_probe.states import TokenStates
from vision.data.images import read_image, to_rgb
from vision.data.loaders import eval_transform
from vision.probing.image_encoder import CHECKPOINT, ImageEncoder

__all__ = ["ImageClassifier"]

MODELS_KEPT = 2  # loaded encoders to keep, so that a cross-validation loads and runs each of them once
BATCH = 32  # images in a forward pass


class ImageClassifier(HeadClassifier):
    """Classify images with a head on the token states of a frozen model.

    The model runs once for each image: up to 1 GiB of states stay in memory and are reused, also between the folds of a
    cross-validation. Images are paths, PIL images, or 8-bit arrays (H, W, 3).

    Args:
        model: ``efficientnet_lite0``, or the name of a timm model.
        pretrained: Use the released weights of a timm model.
        checkpoint: Use the weights of this file instead.
        img_size: Height and width of the images in pixels; None: that of the model.
        **kwargs: As `sot_probe.estimator.HeadClassifier`.

    Example:
        >>> classifier = ImageClassifier("efficientnet_lite0", random_state=0)  # doctest: +SKIP
        >>> classifier.fit(["cat1.jpg", "dog1.jpg"], ["cat", "dog"]).predict(["photo.jpg"])  # doctest: +SKIP
        array(['cat'], dtype='<U3')
    """

    def __init__(
        self,
        model: str = "efficientnet_lite0",
        *,
        pretrained: bool = False,
        checkpoint: str | None = None,
        img_size: int | None = None,
        head: str = "mgcrp",
        head_options: Mapping[str, Any] | None = None,
        layers: Any = -1,
        layer_pair: str | None = None,
        epochs: int | None = None,
        lr: float = 1e-3,
        batch_size: int = 32,
        weight_decay: float = 0.1,
        class_weight: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        random_state: Any = None,
        device: str | None = None,
    ) -> None:
        super().__init__(
            head=head,
            head_options=head_options,
            layers=layers,
            layer_pair=layer_pair,
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            weight_decay=weight_decay,
            class_weight=class_weight,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            random_state=random_state,
            device=device,
        )
        self.model = model
        self.pretrained = pretrained
        self.checkpoint = checkpoint
        self.img_size = img_size

    def _open_encoder(self) -> _CachedEncoder:
        layers = as_layers(self.layers)
        device = str(choose_device(self.device))
        return _cached_encoder(self.model, self.pretrained, self.checkpoint, self.img_size, layers, device)

    def _open_saved(self, folder: Path) -> tuple[_CachedEncoder, LayerHead]:
        encoder, head = ImageEncoder.open_saved(folder / CHECKPOINT, choose_device(self.device))
        if head.head.config.num_classes != len(self.classes_):
            raise UsageError(f"not a model of {len(self.classes_)} classes: {folder.absolute()}; save it again")
        return _CachedEncoder(encoder), head

    def _save_model(self, folder: Path) -> None:
        names = [str(label) for label in self.classes_.tolist()]
        self.encoder_.encoder.save(self.head_, names, self.multi_label_, folder)


class _CachedEncoder:
    """An `ImageEncoder` that keeps the states of images in memory, see `sot_probe.estimator.RowEncoder`."""

    def __init__(self, encoder: ImageEncoder) -> None:
        self.encoder, self.start = encoder, encoder.start
        self.cache = RowCache()
        self.transform = eval_transform(encoder.data_config, as_bytes=False)

    def states(self, rows: Sequence[Any]) -> TokenStates:
        """The states of images."""
        lengths = np.full(len(rows), self.encoder.num_tokens)

        def encode(chosen: np.ndarray) -> list[Tensor]:
            images = [self.transform(_open_image(rows[row])) for row in chosen.tolist()]
            return self.encoder.encode(torch.stack(images))

        return self.cache.states([_key(row) for row in rows], lengths, encode, BATCH * self.encoder.num_tokens)

    def create_head(self, settings: Mapping[str, Any], num_classes: int, start: Mapping[str, Tensor]) -> nn.Module:
        """A head on this encoder."""
        return self.encoder.create_head(settings, num_classes, start)


def _open_image(row: Any) -> Image.Image:
    if isinstance(row, str | os.PathLike):
        return read_image(Path(row).read_bytes(), str(row))
    return to_rgb(row if isinstance(row, Image.Image) else Image.fromarray(row))


def _key(row: Any) -> str:
    """A key of the content of an image, for the cache."""
    if isinstance(row, str | os.PathLike):
        path = Path(row)
        if not path.is_file():
            raise UsageError(f"no such image: {path.absolute()}; check the path")
        status = path.stat()
        return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    if not isinstance(row, Image.Image | np.ndarray):
        raise UsageError(f"not an image, but {type(row).__name__}: images; give paths, PIL's images or 8-bit arrays")
    values = np.asarray(row)
    mode = row.mode if isinstance(row, Image.Image) else ""
    if not mode and (values.dtype != np.uint8 or values.ndim != 3 or values.shape[2] != 3 or not values.size):
        raise UsageError(f"an array {values.shape} of {values.dtype}: images; give (height, width, 3) of uint8")
    return hashlib.sha256(f"{mode} {values.shape} {values.dtype} ".encode() + values.tobytes()).hexdigest()


@lru_cache(maxsize=MODELS_KEPT)
def _cached_encoder(
    model: str,
    pretrained: bool,
    checkpoint: str | None,
    img_size: int | None,
    layers: tuple[int, ...],
    device: str,
) -> _CachedEncoder:
    return _CachedEncoder(ImageEncoder.open(model, pretrained, checkpoint, img_size, layers, device))
