"""Vision models; importing the package registers them with timm."""

from vision.models import deit, hvt, lvvit, micro, names, so_vit, sot, swin
from vision.models.attach import attach_head
from vision.models.hvt import HVT
from vision.models.lvvit import LVViT
from vision.models.sot import SoT
from vision.models.swin import SwinSoT
from vision.models.token_embed import TokenEmbed
from vision.models.weights.load import load_checkpoint, load_published_checkpoint

__all__ = [
    "HVT",
    "LVViT",
    "SoT",
    "SwinSoT",
    "TokenEmbed",
    "attach_head",
    "deit",
    "hvt",
    "load_checkpoint",
    "load_published_checkpoint",
    "lvvit",
    "micro",
    "names",
    "so_vit",
    "sot",
    "swin",
]
