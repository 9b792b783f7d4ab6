"""UperNet on a plain vision transformer, from the decoder of ``segmentation_models_pytorch``.

Reference: arXiv:1807.10221; on LV-ViT arXiv:2104.10858, section 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from sot_base.errors import UsageError
from vision.segment.neck import NECKS, take_indices

__all__ = ["Encoder", "UperNet", "library"]


def library() -> ModuleType:
    """Import ``segmentation_models_pytorch``, which only segmentation needs.

    Raises:
        UsageError: if it is not installed.
    """
    try:
        import segmentation_models_pytorch
    except ImportError as error:
        raise UsageError(
            f"segmentation needs segmentation_models_pytorch: {error}; pip install 'sot-toolkit[segment]'"
        ) from error
    return segmentation_models_pytorch


class Encoder(nn.Module):
    """Four maps from the patch tokens of four blocks of a vision transformer.

    Args:
        backbone: timm's `VisionTransformer` or a subclass, made with ``dynamic_img_size``; its head, final norm and
            the blocks after the last that is taken are removed.
        neck: A key of `NECKS`.
        out_indices: Four blocks, counted from 0; None: as `take_indices`.
        last_channels: Of `SideNeck`.

    Shape:
        (B, C, H, W) with sides that ``multiple`` divides -> maps of a quarter, half, the whole, and with
        ``pyramid`` twice the patch size (``side``: the whole) a value and side.

    Raises:
        UsageError: for a backbone or blocks that do not fit.
    """

    def __init__(
        self,
        backbone: VisionTransformer,
        neck: str = "side",
        out_indices: Sequence[int] | None = None,
        last_channels: int = 2048,
    ) -> None:
        super().__init__()
        self.full_depth = depth = len(backbone.blocks)
        self.out_indices = tuple(take_indices(neck, depth) if out_indices is None else out_indices)
        rising = list(self.out_indices) == sorted(set(self.out_indices))
        if len(self.out_indices) != 4 or not rising or not 0 <= self.out_indices[0] <= self.out_indices[-1] < depth:
            raise UsageError(
                f"four rising blocks of 0 to {depth - 1} are expected: {list(self.out_indices)}; see --out-indices"
            )
        backbone.prune_intermediate_layers(list(self.out_indices), prune_norm=True, prune_head=False)
        for name in ("head", "fc_norm", "attn_pool", "head_dist"):
            if isinstance(getattr(backbone, name, None), nn.Module):
                setattr(backbone, name, nn.Identity())
        self.backbone = backbone
        self.neck = NECKS[neck](backbone.embed_dim, last_channels)
        self.multiple = self.neck.multiple * max(backbone.patch_embed.patch_size)

    def forward(self, images: Tensor) -> list[Tensor]:
        maps = self.backbone.forward_intermediates(images, list(self.out_indices), intermediates_only=True)
        return self.neck(maps)


class UperNet(nn.Module):
    """Class logits for every pixel.

    Images of any size are padded at the right and bottom with zeros, which is the mean colour, to what the encoder
    takes; the logits are those of the image.

    Args:
        encoder: The encoder.
        num_classes: Classes K.
        decoder_channels: Width of the decoder.
        aux_channels: Width of the auxiliary head, which reads the third map in training; 0: none.
        drop_rate: Dropout of whole channels before the classifiers.

    Shape:
        (B, C, H, W) -> (B, K, H, W); in training with an auxiliary head a pair of these.
    """

    def __init__(
        self,
        encoder: Encoder,
        num_classes: int,
        decoder_channels: int = 256,
        aux_channels: int = 256,
        drop_rate: float = 0.1,
    ) -> None:
        super().__init__()
        base, upernet = library().base, library().decoders.upernet.decoder
        self.encoder, self.num_classes = encoder, num_classes
        channels = encoder.neck.out_channels
        self.decoder = upernet.UPerNetDecoder((0, 0, *channels), encoder_depth=5, decoder_channels=decoder_channels)
        if encoder.neck.normalized:
            self.decoder.feature_norms = nn.ModuleList(nn.Identity() for _ in channels)
        self.dropout = nn.Dropout2d(drop_rate)
        self.segmentation_head = base.SegmentationHead(decoder_channels, num_classes, kernel_size=1)
        self.aux_head: nn.Sequential | None = None
        if aux_channels:
            self.aux_head = nn.Sequential(
                base.modules.Conv2dReLU(channels[2], aux_channels, kernel_size=3, padding=1),
                nn.Dropout2d(drop_rate),
                base.SegmentationHead(aux_channels, num_classes, kernel_size=1),
            )
            base.initialization.initialize_decoder(self.aux_head[0])
            base.initialization.initialize_head(self.aux_head[2])
        base.initialization.initialize_decoder(self.decoder)
        base.initialization.initialize_head(self.segmentation_head)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        height, width = images.shape[-2:]
        multiple = self.encoder.multiple
        padded = F.pad(images, (0, -width % multiple, 0, -height % multiple))
        maps = self.encoder(padded)

        def enlarge(logits: Tensor) -> Tensor:
            logits = F.interpolate(logits, padded.shape[-2:], mode="bilinear", align_corners=False)
            return logits[..., :height, :width]

        logits = enlarge(self.segmentation_head(self.dropout(self.decoder([images, images, *maps]))))
        if self.training and self.aux_head is not None:
            return logits, enlarge(self.aux_head(maps[2]))
        return logits

    def no_weight_decay(self) -> set[str]:
        """The backbone's parameters without weight decay."""
        return {f"encoder.backbone.{name}" for name in self.encoder.backbone.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> dict[str, object]:
        """Layers for timm's layer decay: the stem, each block, and all that is new."""
        return {
            "stem": r"^encoder\.backbone\.(?:\w+_token|pos_embed|patch_embed|norm_pre)",
            "blocks": r"^encoder\.backbone\.blocks\.(\d+)",
            "new": r"^(?:encoder\.neck|decoder|segmentation_head|aux_head)",
        }
