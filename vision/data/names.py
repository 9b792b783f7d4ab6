"""What the options about data name, without what reads the data."""

from __future__ import annotations

__all__ = ["DATASETS", "MAX_PIXELS", "PUBLISHED_DATASETS"]

DATASETS = ("folder", "cifar10", "cifar100", "digits")
PUBLISHED_DATASETS = {"CIFAR": "cifar100", "IMNET": "folder"}  # names in HVT and DeiT
MAX_PIXELS = 89_478_485  # Pillow's advice: 256 MiB of RGB
