"""Semantic segmentation: UperNet on plain vision transformers, LV-ViT and SoT among them."""

from sot_base.command_help import asked_for_help

if not asked_for_help():
    from vision.segment.build import build_segmenter
    from vision.segment.inference import Inference
    from vision.segment.load_trained import load_segmenter
    from vision.segment.metrics import ConfusionMatrix
    from vision.segment.model import UperNet
    from vision.segment.weights import load_backbone

__all__ = ["ConfusionMatrix", "Inference", "UperNet", "build_segmenter", "load_backbone", "load_segmenter"]
