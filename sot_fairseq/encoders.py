"""Find an encoder by name or path, in the form that fairseq fine-tunes from.

``python -m sot_fairseq.encoders ENCODER [--output-dir DIR] [--format json|lines]`` prints what a script needs next.
ENCODER is

* a name: ``minilm``, ``roberta.base``, ``spanbert.large``, ``bert.base.cased``... (:data:`ENCODERS`);
* ``scratch:<layers>x<dim>``: a randomly initialised RoBERTa of that size, without a checkpoint;
* a path: a folder with ``model.pt`` and ``dict.txt``, or that of a model of this package (a probe's ``model``, a
  ``--save-dir``), is used as it is; a Hugging Face BERT or SpanBERT folder, or the file of weights in it, is converted
  once into a folder below DIR and found there again.

A name goes before a path: write ``./minilm`` for a folder of that name. A shell script reads ``--format lines``, which
gives ``field<TAB>value``, a line for each element of a list, and no line for an absent value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from sot_base.command_help import show_help
from sot_fairseq.command_options import encoders_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: encoders_parser(__doc__))

from sot_base.errors import UsageError, run_main
from sot_fairseq.convert import convert, find_weights
from sot_fairseq.data.header import HEADER, DataHeader
from sot_fairseq.pretrained.arch_args import fairseq_arch_args, scratch_arch_args
from sot_fairseq.pretrained.encoder_table import ENCODERS, cache_dir, find_encoder, find_gpt2_bpe
from sot_fairseq.tokenizers.sentencepiece_subwords import SentencePieceSubwords
from sot_text.formats.dictionary import read_dictionary
from sot_text.formats.wordpiece import read_vocab, word_pieces

__all__ = ["Encoder", "check_encoder", "fairseq_arch_args", "fetch_encoder", "find"]

CONVERSION = 1  # goes up when a conversion comes out differently, so that old ones are not found again
CLASSIFIER = "checkpoint_best.pt"  # in the folder of a model of this package
TOKENIZER_OPTIONS = {"gpt2": "--gpt2-bpe-dir", "sentencepiece": "--sentencepiece-model", "wordpiece": "--vocab"}


@dataclasses.dataclass(frozen=True)
class Encoder:
    """What preprocessing and fine-tuning need to know of an encoder.

    Attributes:
        bpe: ``gpt2``, ``sentencepiece`` or ``wordpiece``.
        tokenizer: The folder with GPT-2's ``encoder.json`` and ``vocab.bpe``, with ``sentencepiece.bpe.model``, or with
            ``vocab.txt`` and ``tokenizer_config.json`` (casing): what
            :meth:`sot_fairseq.tokenizers.tokenization.TextEncoder.from_folder` takes.
        dictionary: fairseq's ``dict.txt``.
        restore_file: The checkpoint to start from, None for random weights.
        arch_args: fairseq-train's ``--arch`` and sizes.
    """

    bpe: str
    tokenizer: Path
    dictionary: Path
    restore_file: Path | None
    arch_args: list[str]

    @property
    def token_args(self) -> list[str]:
        """fairseq-train's ``--init-token`` and, for ``<s> a </s> </s> b </s>`` (not of BERT), ``--separator-token``."""
        return ["--init-token", "0", *(["--separator-token", "2"] if self.bpe != "wordpiece" else [])]

    @property
    def preprocess_args(self) -> list[str]:
        """The tokenizer's flags for ``python -m sot_fairseq.preprocess``."""
        return ["--bpe", self.bpe, TOKENIZER_OPTIONS[self.bpe], str(self.tokenizer)]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields with paths as strings."""
        fields = dataclasses.asdict(self)
        fields |= {"token_args": self.token_args, "preprocess_args": self.preprocess_args}
        return {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}

    def as_lines(self) -> list[str]:
        """Return ``field<TAB>value`` lines for shell scripts."""
        values = {name: value if isinstance(value, list) else [value] for name, value in self.as_dict().items()}
        return [f"{name}\t{item}" for name, items in values.items() for item in items if item is not None]


def check_encoder(encoder: str) -> None:
    """Check that an encoder is a name, a path or ``scratch:<layers>x<dim>``, before anything is downloaded for it.

    Raises:
        UsageError: If it is none of them.
    """
    if encoder.startswith("scratch:"):
        scratch_arch_args(encoder)
    elif encoder not in ENCODERS and not Path(encoder).exists():
        raise UsageError(
            f"no such encoder: {encoder} is neither a name nor a path ({Path(encoder).resolve()}); "
            f"the names are {', '.join(ENCODERS)} and scratch:<layers>x<dim>"
        )


def fetch_encoder(encoder: str) -> None:
    """Download what a named encoder, or one from scratch, needs and this machine lacks.

    Raises:
        UsageError: If it cannot be had.
    """
    if encoder in ENCODERS:
        find_encoder(encoder)
    if encoder.startswith(("scratch:", "roberta.")):
        find_gpt2_bpe()


def find(encoder: str, output_dir: str | os.PathLike[str] | None = None) -> Encoder:
    """Find an encoder.

    Args:
        encoder: A name, a path or ``scratch:<layers>x<dim>`` (see the module's documentation).
        output_dir: Where conversions go, by default ``<cache>/converted``.

    Raises:
        UsageError: If it is not there (the message says which file to put where) or cannot be used.
    """
    output = Path(output_dir) if output_dir is not None else cache_dir() / "converted"
    if encoder.startswith("scratch:"):
        return _scratch(encoder)
    if encoder in ENCODERS:
        return _from_path(find_encoder(encoder), output, encoder, ENCODERS[encoder].arch)
    check_encoder(encoder)
    return _from_path(Path(encoder), output)


def _scratch(encoder: str) -> Encoder:
    arch_args = scratch_arch_args(encoder)
    tokenizer = find_gpt2_bpe().resolve()
    return Encoder("gpt2", tokenizer, tokenizer / "dict.txt", None, arch_args)


def _from_path(path: Path, output: Path, name: str | None = None, arch: str | None = None) -> Encoder:
    checkpoint = path / "model.pt" if path.is_dir() else path
    if checkpoint.suffix == ".pt" and checkpoint.is_file() and (checkpoint.parent / "dict.txt").is_file():
        return _from_fairseq(checkpoint.resolve())
    if (path / CLASSIFIER).is_file() and (path / HEADER).is_file():
        return _from_classifier(path.resolve())
    weights = find_weights(path)
    label = re.sub(r"[^A-Za-z0-9._-]+", "-", name or weights.resolve().parent.name)
    folder = output.resolve() / f"{label}-{_key(weights, arch)}"
    if not (folder / "architecture.json").is_file():
        convert(weights, folder, arch=arch)
    return _from_fairseq(folder / "model.pt")


def _from_fairseq(checkpoint: Path) -> Encoder:
    """Describe a fairseq folder; BERTs and XLM-Rs bring their tokenizer, RoBERTas use GPT-2's."""
    arch_args = fairseq_arch_args(checkpoint)
    dictionary = checkpoint.parent / "dict.txt"
    if (checkpoint.parent / SentencePieceSubwords.vocab_file).is_file():
        SentencePieceSubwords(checkpoint.parent)  # tells whether it fits the dictionary
        return Encoder("sentencepiece", checkpoint.parent, dictionary, checkpoint, arch_args)
    if "--token-types" in arch_args:
        bpe, tokenizer, words = "wordpiece", checkpoint.parent / "tokenizer", "vocab.txt"
        if not (tokenizer / words).is_file():
            raise UsageError(f"a BERT without its vocabulary: {checkpoint}; put the vocab.txt in {tokenizer}")
        own = word_pieces(read_vocab(tokenizer / words))
    else:
        bpe, tokenizer, words = "gpt2", find_gpt2_bpe().resolve(), "dict.txt"
        own = [token for token, _ in read_dictionary(tokenizer / words)]
    if own != [token for token, _ in read_dictionary(dictionary)]:
        raise UsageError(
            f"the dictionary is not the tokenizer's: {dictionary} and {tokenizer / words}; give those of one encoder"
        )
    return Encoder(bpe, tokenizer, dictionary, checkpoint, arch_args)


def _from_classifier(folder: Path) -> Encoder:
    """Describe a fine-tuned model, or a probe's, with the tokenizer that lies beside it."""
    checkpoint, bpe = folder / CLASSIFIER, DataHeader.load(folder).bpe
    return Encoder(bpe, folder / "tokenizer", folder / "input0" / "dict.txt", checkpoint, fairseq_arch_args(checkpoint))


def _key(weights: Path, arch: str | None) -> str:
    """Identify a conversion by its input files: their paths, sizes and times."""
    text = f"{CONVERSION} {arch}"
    for name in (weights.name, "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        file = weights.resolve().parent / name
        if file.is_file():
            text += f"\n{file} {file.stat().st_size} {file.stat().st_mtime_ns}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def main() -> None:
    """Find an encoder from the command line and print its fields."""
    args = encoders_parser(__doc__).parse_args()
    found = find(args.encoder, args.output_dir)
    print(json.dumps(found.as_dict(), indent=2) if args.format == "json" else "\n".join(found.as_lines()))  # noqa: T201


if __name__ == "__main__":
    run_main(main)
