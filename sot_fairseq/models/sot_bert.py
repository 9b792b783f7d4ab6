"""BERT and SpanBERT for fairseq: post-layer-norm, token types, equal to the published models.

fairseq's own ``bert_base`` is an unrelated, older model without a classification interface. Its RoBERTa is this model
without token types and with another layer norm constant. Weights come from ``python -m sot_fairseq.convert``.
"""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.roberta.model import base_architecture
from fairseq.tasks import FairseqTask
from fairseq.utils import safe_getattr
from omegaconf import OmegaConf, open_dict

from sot_fairseq.models.sot_roberta import SoTRobertaModel
from sot_fairseq.models.token_type_encoder import SoTBertEncoder

__all__ = ["SoTBertModel", "sot_bert_base", "sot_bert_large"]


@register_model("sot_bert")
class SoTBertModel(SoTRobertaModel):
    """BERT: ``<s>`` is its ``[CLS]``, ``</s>`` its ``[SEP]``, a pair is ``<s> a </s> b </s>`` (one separator).

    Its sizes are set by the flags of fairseq's ``roberta``; its classification heads and checkpoints are those of
    :class:`SoTRobertaModel`.
    """

    @classmethod
    def hub_models(cls) -> dict[str, str]:
        """Name no archives: a BERT folder is made by ``python -m sot_fairseq.convert``."""
        return {}

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add what BERT has besides RoBERTa's arguments."""
        SoTRobertaModel.add_args(parser)
        parser.add_argument(
            "--token-types", type=int, metavar="N", help="rows of the token type table, 0: no token types"
        )
        parser.add_argument("--layer-norm-eps", type=float, metavar="E", help="constant inside every layer norm")

    @classmethod
    def build_model(cls, args: Any, task: FairseqTask) -> SoTBertModel:
        """Build the model for the task's input dictionary."""
        with open_dict(args) if OmegaConf.is_config(args) else contextlib.nullcontext():
            sot_bert_base(args)
            return cls(args, SoTBertEncoder(args, task.source_dictionary))


@register_model_architecture("sot_bert", "sot_bert_base")
def sot_bert_base(args: Any) -> None:
    """Set what is not set to BERT-base's values: 12 layers, 768 wide, 12 heads."""
    args.token_types = safe_getattr(args, "token_types", 2)
    args.layer_norm_eps = safe_getattr(args, "layer_norm_eps", 1e-12)
    args.max_positions = safe_getattr(args, "max_positions", 512)
    base_architecture(args)


@register_model_architecture("sot_bert", "sot_bert_large")
def sot_bert_large(args: Any) -> None:
    """Set what is not set to BERT-large's values: 24 layers, 1024 wide, 16 heads."""
    args.encoder_layers = safe_getattr(args, "encoder_layers", 24)
    args.encoder_embed_dim = safe_getattr(args, "encoder_embed_dim", 1024)
    args.encoder_ffn_embed_dim = safe_getattr(args, "encoder_ffn_embed_dim", 4096)
    args.encoder_attention_heads = safe_getattr(args, "encoder_attention_heads", 16)
    sot_bert_base(args)


@register_model_architecture("sot_bert", "spanbert_base")
def spanbert_base(args: Any) -> None:
    """SpanBERT-base: BERT-base's shape (it was trained on single sentences; its token type table has two rows)."""
    sot_bert_base(args)


@register_model_architecture("sot_bert", "spanbert_large")
def spanbert_large(args: Any) -> None:
    """SpanBERT-large: BERT-large's shape."""
    sot_bert_large(args)
