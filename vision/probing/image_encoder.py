"""A timm model as a frozen encoder, which can be saved with a trained head."""

from __future__ import annotations

import copy
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_core import ClassificationHead
from sot_probe.fingerprint import weights_digest
from sot_probe.layer_head import LayerHead
from sot_probe.options import resolve_layers
from vision.models.attach import attach_head
from vision.models.build import build_model, check_image_size, model_recipe, resolve_config, saved_recipe
from vision.models.head_mixin import HeadMixin, count_prefix_tokens, resolve_head_config
from vision.models.weights.load import choose_weights, load_checkpoint
from vision.models.weights.packaged import ENCODERS, load_packaged
from vision.models.weights.read import read_checkpoint
from vision.probing.top_layers import TopLayers
from vision.training.saver import save_checkpoint

__all__ = ["CHECKPOINT", "ImageEncoder"]

SAME = 1e-3  # difference of states up to which copied blocks are those of the model
CHECKPOINT = "model_best.pth.tar"  # in the folder of a model


class ImageEncoder:
    """A frozen timm model.

    The class token is the model's own, if it has one; distillation and register tokens are left out, and each position
    of a feature map is a token.

    Args:
        model: The model; its classifier is replaced.
        recipe: What it is built from, see `vision.models.build.build_model`.
        data_config: timm's data configuration.
        layers: Layers to read: 1 the first block, -1 the last one.
        device: Device of the model.
        train_layers: Number of blocks from the top that are trained with heads; the states of the block below them are
            read, with all prefix tokens and without the model's last norm.

    Attributes:
        layers: Numbers of the layers.
        num_tokens: Number of tokens of an image, class token included.
        start: Initial weights of heads: none.

    Raises:
        UsageError: if the model has no such layer, or no token states.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Mapping[str, Any],
        data_config: Mapping[str, Any],
        layers: Sequence[int] = (-1,),
        device: torch.device | str = "cpu",
        train_layers: int = 0,
    ) -> None:
        self.data_config, self.start = dict(data_config), {}
        self.recipe = {**recipe, "head": {}}
        self.num_layers = len(model.blocks) if _is_transformer(model) else 1
        self.train_layers = train_layers
        if train_layers and self.num_layers == 1:
            raise UsageError(f"{recipe['name']} is no vision transformer: --train-layers {train_layers}; leave it out")
        if train_layers >= self.num_layers:
            most = self.num_layers - 1  # the first block's states are the lowest that are stored
            raise UsageError(f"{recipe['name']} has {self.num_layers} blocks: --train-layers; give at most {most}")
        self.layers = resolve_layers(layers, self.num_layers, train_layers)
        if 0 in self.layers or (self.num_layers == 1 and self.layers != [1]):
            raise UsageError(
                f"no such layer of {recipe['name']}: --layers 0; give 1 to {self.num_layers}"
                + ("" if self.num_layers > 1 else ", the only layer of models that are not vision transformers")
            )
        try:
            self.model: HeadMixin = attach_head(model, {})
        except (TypeError, ValueError) as error:
            raise UsageError(f"no head fits the model {recipe['name']}: {error}; give another one") from error
        self.model.eval().requires_grad_(False).to(device)
        self.with_cls = self.model.head.config.has_cls_token
        self.embed_dim = self.model.head.config.embed_dim
        self.num_tokens = self.encode(torch.zeros(1, *self.data_config["input_size"]))[0].shape[1]

    @classmethod
    def open(
        cls,
        name: str,
        pretrained: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        img_size: int | None = None,
        layers: Sequence[int] = (-1,),
        device: torch.device | str = "cpu",
        train_layers: int = 0,
    ) -> ImageEncoder:
        """Build an encoder with its weights.

        Args:
            name: ``efficientnet_lite0``, whose weights are in a package, or the name of a timm model.
            pretrained: Use the released weights of a timm model.
            checkpoint: Use the weights of this file; the number of classes may differ.
            img_size: Height and width of the images; None: the model's.
            layers: As above.
            device: As above.
            train_layers: As above.

        Raises:
            UsageError: without weights, or for a model that timm does not know.
        """
        packaged = ENCODERS.get(name)
        options = Namespace(model=packaged.model if packaged else name, drop=None, drop_path=None, model_kwargs={})
        options.img_size, options.input_size = img_size, None
        recipe = model_recipe(options, 1000, {})
        if not packaged and not pretrained and checkpoint is None:
            raise UsageError(
                f"no weights of {name}: the command line; give --pretrained, --checkpoint FILE, or one of "
                f"{', '.join(ENCODERS)} as the model"
            )
        if packaged and checkpoint is None:
            model = load_packaged(name)
        else:
            model = build_model(recipe, pretrained and checkpoint is None)
        if checkpoint is not None:
            load_checkpoint(model, checkpoint)
        data_config = resolve_config({"img_size": img_size}, model)
        check_image_size(model, recipe["name"], data_config["input_size"])
        return cls(model, recipe, data_config, layers, device, train_layers)

    @classmethod
    def open_saved(
        cls, path: str | os.PathLike[str], device: torch.device | str = "cpu"
    ) -> tuple[ImageEncoder, LayerHead]:
        """Load a model that was saved with its head.

        Raises:
            UsageError: if the file is not one of this package.
        """
        content = read_checkpoint(path)
        if "recipe" not in content:
            raise UsageError(f"no model of this package: {path}; give one that it saved")
        recipe, state = content["recipe"], choose_weights(content)[1]
        model = load_checkpoint(build_model(recipe), state, strict=True)
        head = LayerHead(copy.deepcopy(model.head)).eval()
        return cls(model, recipe, content["data_config"], device=device), head

    def describe(self) -> dict[str, Any]:
        """Everything that the states depend on, except the images."""
        state = {name: value for name, value in self.model.state_dict().items() if not name.startswith("head.")}
        names = ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode")
        images = {name: self.data_config[name] for name in names}
        found = {"model": self.recipe["name"], "weights": weights_digest(state), "images": images}
        return {**found, "without_norm": True} if self.train_layers else found

    @torch.no_grad()
    def encode(self, images: Tensor) -> list[Tensor]:
        """Encode images (B, C, H, W): (B, T, D) for each layer, class token first, on the CPU."""
        device = next(self.model.parameters()).device
        images = images.to(device)
        if self.layers == [self.num_layers]:
            return [self.model.word_tokens(self.model.forward_features(images)).float().cpu()]
        found = self.model.forward_intermediates(
            images,
            indices=[layer - 1 for layer in self.layers],
            return_prefix_tokens=True,
            norm=not self.train_layers,
            output_fmt="NLC",
            intermediates_only=True,
        )
        by_layer = dict(zip(sorted(self.layers), found, strict=True))
        return [self._tokens(by_layer[layer]) for layer in self.layers]

    def _tokens(self, found: Any) -> Tensor:
        parts = found if isinstance(found, tuple) else (found, None)
        tokens = parts[0] if parts[1] is None else torch.cat([parts[1], parts[0]], dim=1)
        return (tokens if self.train_layers else self.model.word_tokens(tokens)).float().cpu()

    @torch.no_grad()
    def create_top_layers(self, count: int) -> TopLayers:
        """Copy the top blocks, to be trained on the states of the block below them.

        Raises:
            UsageError: for a model whose blocks do not run by themselves.
        """
        top = TopLayers(self.model, count).eval()
        device = next(self.model.parameters()).device
        images = torch.rand(2, *self.data_config["input_size"], generator=torch.Generator().manual_seed(0))
        expected = self.model.word_tokens(self.model.forward_features(images.to(device)))
        (stored,) = self.encode(images)
        try:
            found, _ = top(stored.to(device))
            same = torch.allclose(found, expected, atol=SAME, rtol=SAME)
        except (TypeError, ValueError, RuntimeError):  # blocks that need more than tokens
            same = False
        if not same or getattr(self.model, "rope", None) is not None:  # rotary positions matter little at first
            name = self.recipe["name"]
            raise UsageError(
                f"the blocks of {name} do not run by themselves: --train-layers; fine-tune with vision/train.py"
            )
        return top

    def create_head(
        self, settings: Mapping[str, Any], num_classes: int, start: Mapping[str, Tensor]
    ) -> ClassificationHead:
        """Create a head from fields of `HeadConfig`; `start` is empty.

        Raises:
            UsageError: for a setting out of range.
        """
        try:
            return ClassificationHead(resolve_head_config(settings, self.embed_dim, num_classes, self.with_cls))
        except ValueError as error:
            raise UsageError(f"the head cannot be built: {error}; see docs/heads.md") from error

    def save(
        self, head: LayerHead, class_names: Sequence[str], multi_label: bool, folder: str | os.PathLike[str]
    ) -> None:
        """Write the model with a trained head, and blocks that were trained with it, as ``vision/train.py`` does.

        Raises:
            UsageError: if the head reads another layer than the last one.
        """
        if head.top_layers is None and self.layers != [self.num_layers]:
            raise UsageError(f"an image model reads the last layer, this head {self.layers}: save; use --layers -1")
        model = copy.deepcopy(self.model).cpu()
        if head.top_layers is not None:
            head.top_layers.load_into(model)
        model.set_head(copy.deepcopy(head.head))
        content = {
            "arch": self.recipe["name"],
            "state_dict": model.state_dict(),
            "recipe": saved_recipe({**self.recipe, "num_classes": len(class_names)}, model),
            "data_config": self.data_config,
            "class_names": list(class_names),
            "options": {},
            "multi_label": multi_label,
        }
        save_checkpoint(os.path.join(folder, CHECKPOINT), content)


def _is_transformer(model: nn.Module) -> bool:
    """Whether the states of each block can be read, as in timm's vision transformers."""
    return hasattr(model, "blocks") and hasattr(model, "forward_intermediates") and count_prefix_tokens(model) > 0
