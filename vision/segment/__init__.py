"""Semantic segmentation: UperNet on plain vision transformers, LV-ViT and SoT among them."""

from vision.segment.build import build_segmenter, load_backbone, load_segmenter
from vision.segment.inference import Inference
from vision.segment.metrics import ConfusionMatrix
from vision.segment.model import UperNet

__all__ = ["ConfusionMatrix", "Inference", "UperNet", "build_segmenter", "load_backbone", "load_segmenter"]
