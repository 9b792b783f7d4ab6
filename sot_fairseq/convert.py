"""Convert a Hugging Face BERT or SpanBERT to a folder that fairseq fine-tunes from.

``python -m sot_fairseq.convert SOURCE --output-dir DIR`` reads a folder (or the weights file in it) with
``config.json``, ``model.safetensors`` or ``pytorch_model.bin``, and ``vocab.txt`` or ``tokenizer.json``, and prints the
folder it wrote:

* ``model.pt``: a fairseq checkpoint of the model ``sot_bert``, for ``fairseq-train --restore-file``. Its ``model`` has
  BERT's pretrained pooler too, as ``pooler.dense.weight`` and ``pooler.dense.bias``: a new head starts from it;
* ``dict.txt``: fairseq's dictionary, in the order of the embedding's rows;
* ``tokenizer/``: ``vocab.txt`` and ``tokenizer_config.json`` with ``do_lower_case``;
* ``architecture.json``: the sizes; :func:`sot_fairseq.encoders.fairseq_arch_args` makes fairseq's flags of them.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

from sot_base.command_help import show_help
from sot_fairseq.command_options import convert_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: convert_parser(__doc__))

from sot_base.atomic import atomic_folder
from sot_base.errors import UsageError, run_main
from sot_base.small_files import read_json
from sot_base.torch_files import save_torch
from sot_fairseq.pretrained.arch_args import bert_model_args
from sot_text.formats.architecture import BertArchitecture
from sot_text.formats.bert_weights import FairseqBert, bert_to_fairseq
from sot_text.formats.checkpoint_file import read_bert_weights
from sot_text.formats.checkpoint_layout import fairseq_checkpoint
from sot_text.formats.tokenizer_json import read_word_pieces
from sot_text.formats.wordpiece import WordPieceSettings, fairseq_order, read_settings, read_vocab, write_dict

__all__ = ["convert", "find_weights"]

logger = logging.getLogger(__name__)

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
OUTPUTS = {"model.pt", "dict.txt", "tokenizer", "architecture.json"}


def convert(
    source: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    vocab: str | os.PathLike[str] | None = None,
    lower_case: bool | None = None,
    arch: str | None = None,
) -> Path:
    """Write the fairseq form of a Hugging Face BERT.

    Args:
        source: A folder, or a file of weights with its ``config.json`` beside it.
        output_dir: The folder to write; an earlier conversion in it is replaced.
        vocab: A ``vocab.txt`` from elsewhere (SpanBERT's archives have none: it is that of ``bert-base-cased``).
        lower_case: Whether text is lower-cased; by default as the tokenizer's files say.
        arch: The fairseq architecture to name in the checkpoint, by default ``sot_bert_base`` or ``sot_bert_large``.

    Returns:
        The resolved `output_dir`.

    Raises:
        UsageError: If the files are not a whole BERT, or `output_dir` holds something else. Nothing is written then.
    """
    weights = find_weights(source)
    output = Path(output_dir).resolve()
    _check_output(output)
    config = weights.parent / "config.json"
    architecture = BertArchitecture.from_hf_config(
        read_json(config, dict[str, Any], "put it beside the weights"), str(config.resolve())
    )
    pieces, settings = _read_tokenizer(weights.parent, vocab, lower_case)
    bert = bert_to_fairseq(read_bert_weights(weights), architecture, fairseq_order(pieces), str(weights.resolve()))
    _log(weights, architecture, bert)
    arch = arch or ("sot_bert_large" if architecture.embed_dim >= 1024 else "sot_bert_base")
    with atomic_folder(output) as folder:
        save_torch(_checkpoint(bert, architecture, arch), folder / "model.pt")
        write_dict(pieces, folder / "dict.txt")
        tokenizer = folder / "tokenizer"
        tokenizer.mkdir()
        (tokenizer / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8", newline="\n")
        settings.save(tokenizer)
        sizes = {"arch": arch, **dataclasses.asdict(architecture)}
        (folder / "architecture.json").write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
    return output


def find_weights(source: str | os.PathLike[str]) -> Path:
    """Return the file of weights that `source` is or, if it is a folder, has.

    Raises:
        UsageError: If there is none.
    """
    path = Path(source)
    if path.is_file():
        return path
    if not path.is_dir():
        raise UsageError(f"no such file or folder: {path.resolve()}; check the path")
    for name in WEIGHTS:
        if (path / name).is_file():
            return path / name
    raise UsageError(f"no weights in the folder: {path.resolve()}; it needs {' or '.join(WEIGHTS)}")


def _checkpoint(bert: FairseqBert, architecture: BertArchitecture, arch: str) -> dict[str, Any]:
    return fairseq_checkpoint(
        {"_name": "masked_lm", "data": ".", "tokens_per_sample": architecture.max_positions},
        {"_name": arch, **bert_model_args(architecture), "load_checkpoint_heads": False},
        bert.model,
    )


def _read_tokenizer(
    folder: Path, vocab: str | os.PathLike[str] | None, lower_case: bool | None
) -> tuple[list[str], WordPieceSettings]:
    """Read the vocabulary and how text is normalised for it."""
    file = Path(vocab) if vocab is not None else folder / "vocab.txt"
    if vocab is None and not file.exists() and (folder / "tokenizer.json").exists():
        file = folder / "tokenizer.json"
    pieces = read_word_pieces(file) if file.suffix == ".json" else read_vocab(file)
    return pieces, read_settings(file, pieces, lower_case)


def _check_output(output: Path) -> None:
    """Refuse to replace a folder that is not an earlier conversion."""
    if output.exists() and not output.is_dir():
        raise UsageError(f"a file where the output folder should be: {output}; choose another --output-dir")
    others = sorted({entry.name for entry in output.iterdir()} - OUTPUTS) if output.is_dir() else []
    if others:
        raise UsageError(f"the output folder holds other files ({others[0]}): {output}; choose another --output-dir")


def _log(weights: Path, architecture: BertArchitecture, bert: FairseqBert) -> None:
    logger.info("%s: %d layers, %d wide", weights, architecture.layers, architecture.embed_dim)
    if not bert.has_pooler:
        logger.info("no pooler in the file: a CLS head starts from scratch")
    if not bert.has_lm_head:
        logger.info("no masked language model's head in the file: classification does not need it")
    if bert.ignored:
        logger.info("%d tensors of other heads ignored: %s", len(bert.ignored), ", ".join(bert.ignored))


def main() -> None:
    """Convert from the command line and print the folder."""
    args = convert_parser(__doc__).parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(convert(args.source, args.output_dir, args.vocab, args.lower_case, args.arch))  # noqa: T201


if __name__ == "__main__":
    run_main(main)
