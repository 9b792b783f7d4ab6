"""Move a fine-tuned classifier between fairseq and Hugging Face: ``python -m sot_hf.convert SOURCE --output_dir DIR``.

A checkpoint of the fairseq task ``sentence_prediction_mgcrp`` (its ``--save-dir`` or the file) becomes a folder that
``AutoModelForSequenceClassification`` loads after ``import sot_hf``; such a folder, with a BERT or RoBERTa, becomes
one with ``checkpoint_best.pt``, dictionaries and tokenizer that ``sot_fairseq.from_pretrained`` loads.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sot_base.command_help import show_help
from sot_hf.command_options import convert_parser

if __name__ == "__main__":  # before the imports that take seconds
    show_help(lambda: convert_parser(__doc__))

import torch
from torch import Tensor
from transformers import BertConfig, PreTrainedTokenizerFast, RobertaConfig
from transformers.utils import logging as hf_logging

from sot_base.atomic import atomic_folder
from sot_base.errors import UsageError, run_main
from sot_base.torch_files import save_torch
from sot_hf.configuration import SoTConfig
from sot_hf.error_text import first_sentence
from sot_hf.fairseq_tokenizer import bert_tokenizer, roberta_tokenizer, save_bert_files, save_roberta_files
from sot_hf.load_config import load_config, saved_labels
from sot_hf.load_model import load_weights
from sot_hf.modeling import SoTForSequenceClassification
from sot_text.formats.architecture import ACTIVATIONS, BertArchitecture
from sot_text.formats.bert_weights import bert_to_fairseq, fairseq_to_bert
from sot_text.formats.class_names import check_labels
from sot_text.formats.dictionary import read_dictionary, write_dictionary
from sot_text.formats.fairseq_classifier import FairseqClassifier, read_classifier
from sot_text.formats.roberta_weights import TOKEN_TYPES, fairseq_to_roberta, roberta_to_fairseq
from sot_text.formats.wordpiece import fairseq_order, read_vocab, word_pieces

__all__ = ["convert", "main", "to_fairseq", "to_hugging_face"]

logger = logging.getLogger(__name__)

HF_ACTIVATIONS = {"gelu": "gelu", "gelu_accurate": "gelu_new", "relu": "relu"}


def convert(
    source: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    head: str | None = None,
    data: str | os.PathLike[str] | None = None,
) -> Path:
    """Convert in the direction that `source` implies.

    Args:
        source: A fairseq checkpoint or its folder, or a folder saved by Hugging Face.
        output_dir: A folder to write; it must be absent or empty.
        head: Name of the fairseq head; default: the one the checkpoint was trained with.
        data: The preprocessed fairseq data, if they lie neither beside the checkpoint nor where it was trained.

    Returns:
        The resolved `output_dir`.

    Raises:
        UsageError: If `source` is neither, or the other side cannot hold it. Nothing is written then.
    """
    output = Path(output_dir).resolve()
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UsageError(f"the output folder is not empty: {output}; choose another --output_dir")
    if (Path(source) / "config.json").is_file():
        to_fairseq(Path(source), output)
    else:
        classifier = read_classifier(source, head, data)
        try:
            to_hugging_face(classifier, output)
        except UsageError:
            raise
        except ValueError as error:  # a setting out of its range
            where = f"{Path(source).absolute()}; get it again"
            raise UsageError(f"the model cannot be built ({first_sentence(error)}): {where}") from error
    return output


def to_hugging_face(classifier: FairseqClassifier, output: Path) -> None:
    """Write a fairseq classifier as a folder for ``AutoModelForSequenceClassification``.

    Raises:
        UsageError: If the vocabulary of a BERT is absent: its rows have another order there.
    """
    tokenizer = _tokenizer(classifier)
    config = SoTConfig(_backbone_config(classifier), head=classifier.head_settings, **_labels(classifier))
    config.backbone.architectures = ["BertModel" if classifier.kind == "bert" else "RobertaModel"]
    model = SoTForSequenceClassification(config)
    tensors = {f"backbone.{name}": value for name, value in _hf_encoder(classifier).items()}
    tensors |= {f"classifier.{name}": value.float() for name, value in classifier.head.items()}
    _load_all(model, tensors)
    with atomic_folder(output) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def to_fairseq(source: Path, output: Path) -> None:
    """Write a saved model with a BERT or RoBERTa in it as a folder for ``sot_fairseq.from_pretrained``.

    Raises:
        UsageError: For another backbone, a decoder's use of it, labels or a tokenizer that fairseq's side does not
            have.
    """
    config = load_config(os.fspath(source))
    if not isinstance(config, SoTConfig) or config.backbone.model_type not in ("bert", "roberta"):
        kind = config.backbone.model_type if isinstance(config, SoTConfig) else config.model_type
        raise UsageError(f"a {kind} where a BERT or RoBERTa with a head is expected: {source.absolute()}; give one")
    if config.cls_position != "first":
        raise UsageError(f"fairseq's task has no decoder: {source.absolute()}; keep it")
    if config.layers is not None:
        raise UsageError(f"fairseq's head reads the last layer, this one {config.layers}: {source.absolute()}; keep it")
    backbone, kind = config.backbone, config.backbone.model_type
    labels = check_labels(saved_labels(config) or (), os.fspath(source)) if config.num_labels > 1 else ()
    model = load_weights(os.fspath(source), config, dtype=torch.float32)
    tensors = model.backbone.state_dict()
    with atomic_folder(output) as folder:
        for name in ("input0", "tokenizer", "label"):
            (folder / name).mkdir()
        dictionary = folder / "input0" / "dict.txt"
        sizes = BertArchitecture.from_hf_config({**backbone.to_dict(), "model_type": "bert"}, os.fspath(source))
        if kind == "bert":
            pieces = save_bert_files(source, folder / "tokenizer", dictionary)
            encoder = bert_to_fairseq(tensors, sizes, fairseq_order(pieces), os.fspath(source)).model
        else:
            save_roberta_files(source, folder / "tokenizer", dictionary)
            encoder = roberta_to_fairseq(tensors, sizes.layers)
            sizes = _roberta_sizes(sizes, backbone)
        if labels:
            write_dictionary(folder / "label" / "dict.txt", [(name, 1) for name in labels])
        classifier = FairseqClassifier(
            kind,
            sizes,
            encoder,
            model.classifier.state_dict(),
            config.head,
            labels,
            float(backbone.hidden_dropout_prob),
            float(backbone.attention_probs_dropout_prob),
            multi_label=config.problem_type == "multi_label_classification",
        )
        save_torch(classifier.checkpoint(), folder / "checkpoint_best.pt")


def _roberta_sizes(sizes: BertArchitecture, config: RobertaConfig) -> BertArchitecture:
    if config.layer_norm_eps != 1e-5 or config.pad_token_id != 1:
        raise UsageError(
            f"fairseq's RoBERTa has layer_norm_eps 1e-5 and padding at 1, not {config.layer_norm_eps} and "
            f"{config.pad_token_id}: config.json; give a RoBERTa as published"
        )
    return dataclasses.replace(sizes, max_positions=sizes.max_positions - 2, token_types=0, layer_norm_eps=1e-5)


def _backbone_config(classifier: FairseqClassifier) -> BertConfig | RobertaConfig:
    sizes = classifier.architecture
    if sizes.activation not in ACTIVATIONS.values():
        raise UsageError(f"no Hugging Face name for the activation {sizes.activation!r}: the checkpoint; keep it there")
    rows = classifier.encoder["encoder.sentence_encoder.embed_tokens.weight"].shape[0]
    common: dict[str, Any] = {
        "vocab_size": rows,
        "hidden_size": sizes.embed_dim,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "intermediate_size": sizes.ffn_dim,
        "hidden_act": HF_ACTIVATIONS[sizes.activation],
        "layer_norm_eps": sizes.layer_norm_eps,
        "hidden_dropout_prob": classifier.dropout,
        "attention_probs_dropout_prob": classifier.attention_dropout,
    }
    if classifier.kind == "bert":
        padding = _bert_pieces(classifier).index("[PAD]")
        types = max(sizes.token_types, 1)
        return BertConfig(
            **common, max_position_embeddings=sizes.max_positions, type_vocab_size=types, pad_token_id=padding
        )
    specials = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    return RobertaConfig(**common, max_position_embeddings=sizes.max_positions + 2, type_vocab_size=1, **specials)


def _hf_encoder(classifier: FairseqClassifier) -> dict[str, Tensor]:
    sizes = classifier.architecture
    if classifier.kind == "roberta":
        return fairseq_to_roberta(classifier.encoder, sizes.layers)
    tensors = fairseq_to_bert(classifier.encoder, sizes, fairseq_order(_bert_pieces(classifier)))
    if not sizes.token_types:
        tensors[TOKEN_TYPES] = torch.zeros(1, sizes.embed_dim)
    return {name: value.float() for name, value in tensors.items() if not name.startswith(("cls.", "pooler."))}


def _bert_pieces(classifier: FairseqClassifier) -> list[str]:
    if classifier.data is None:
        raise UsageError("no tokenizer/vocab.txt beside the checkpoint or in its training data; give --data")
    folder = classifier.data / "tokenizer"
    vocab, dictionary = read_vocab(folder / "vocab.txt"), folder / "dict.txt"
    if dictionary.is_file() and [entry for entry, _ in read_dictionary(dictionary)] != word_pieces(vocab):
        raise UsageError(f"vocab.txt and dict.txt are of different vocabularies: {folder.absolute()}; get both again")
    return vocab


def _tokenizer(classifier: FairseqClassifier) -> PreTrainedTokenizerFast | None:
    length = classifier.architecture.max_positions
    if classifier.kind == "bert":
        _bert_pieces(classifier)
        return bert_tokenizer(classifier.data / "tokenizer", length)
    if classifier.data is None:
        logger.warning("no folder tokenizer beside the checkpoint or in its training data: none is written")
        return None
    try:
        return roberta_tokenizer(classifier.data / "tokenizer", length)
    except UsageError as error:
        logger.warning("no tokenizer is written: %s", error)
        return None


def _labels(classifier: FairseqClassifier) -> dict[str, Any]:
    names = list(classifier.labels) or ["score"]
    problem = "multi_label_classification" if classifier.multi_label else "single_label_classification"
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": problem if classifier.labels else "regression",
    }


def _load_all(model: SoTForSequenceClassification, tensors: dict[str, Tensor]) -> None:
    """Load a state dict, or report missing and unexpected tensors."""
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"the checkpoint does not fit its own description ({reason}); train it with this version"
        ) from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert from the command line and print the folder."""
    args = convert_parser(__doc__).parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    hf_logging.set_verbosity_warning()
    print(convert(args.source, args.output_dir, args.head, args.data))  # noqa: T201


if __name__ == "__main__":
    run_main(main)
