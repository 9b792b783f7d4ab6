"""Released weights by name: where a model's weights are, and their download."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import timm
from timm.models import PretrainedCfg, split_model_name_tag

from sot_base.download.file import RemoteFile, cache_dir, download
from sot_base.errors import UsageError

__all__ = ["download_weights", "find_weights"]

_CHECKSUM = re.compile(r"-(?=\d*[a-f])([0-9a-f]{8,64})\.")  # as in deit_tiny_patch16_224-a1311bcf.pth; not a date
_OPTIONS = (
    "give the file of weights as the command's --checkpoint, --initial-checkpoint or --backbone-checkpoint, "
    "or in Python as pretrained_cfg_overlay=dict(file=...)"
)


def find_weights(variant: str, config: PretrainedCfg, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the file of a model's weights, downloaded if it has an address.

    Args:
        variant: Name of the model.
        config: timm's description of its weights: ``file`` comes before ``url``.
        folder: Where to download; None: see `download_weights`.

    Returns:
        The file; None where timm reads other sources itself (``state_dict``, ``hf_hub_id``, ``source``).

    Raises:
        UsageError: If the model has no released weights, or they cannot be downloaded.
    """
    if config.state_dict or config.hf_hub_id or config.source:
        return None
    if config.file:
        return Path(config.file)
    if config.url:
        return download_weights(config.url, folder)
    if config.origin_url:
        raise UsageError(
            f"download only by hand: {config.origin_url}; open it, click Download and confirm, then {_OPTIONS}"
        )
    names = timm.list_pretrained(f"{split_model_name_tag(variant)[0]}.*")
    remedy = f"choose {' or '.join(names)}, or {_OPTIONS}" if names else _OPTIONS
    raise UsageError(f"no released weights: {variant}; {remedy}")


def download_weights(url: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Download a file of weights, unless it is there; see `sot_base.download.file` for mirror and offline mode.

    A checksum in the file's name (``-a1311bcf.``, the first digits of its SHA-256, as torch hub has it) is verified.

    Args:
        url: Its https address.
        folder: Where to put it; None: the address's own folder in ``<cache>/vision``.

    Raises:
        UsageError: As `sot_base.download.file.download`.
    """
    checksum = _CHECKSUM.search(url.rpartition("/")[2])
    remote = RemoteFile(url, checksum and checksum[1])
    if folder is None:
        parts = urlsplit(url)
        steps = [step for step in parts.path.split("/")[:-1] if step not in ("", ".", "..")]
        folder = cache_dir().joinpath("vision", parts.hostname or "", *steps)
    return download(remote, Path(folder) / remote.name)
