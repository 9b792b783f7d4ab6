"""XLM-R's architectures ``xlmr_base`` and ``xlmr_large``: RoBERTa's shapes; only vocabulary and tokenizer are others.

fairseq has its model class but no architecture of that name. They are registered for its ``roberta``, which the task
builds as :class:`sot_fairseq.models.sot_roberta.SoTRobertaModel`. The published position tables have 514 rows, the
first two of which fairseq keeps for padding: 512 positions.
"""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model_architecture
from fairseq.models.roberta.model import roberta_base_architecture, roberta_large_architecture
from fairseq.utils import safe_getattr

__all__ = ["xlmr_base", "xlmr_large"]


@register_model_architecture("roberta", "xlmr_base")
def xlmr_base(args: Any) -> None:
    """Set what is not set to XLM-R base's values: 12 layers, 768 wide, 12 heads."""
    args.max_positions = safe_getattr(args, "max_positions", 512)
    roberta_base_architecture(args)


@register_model_architecture("roberta", "xlmr_large")
def xlmr_large(args: Any) -> None:
    """Set what is not set to XLM-R large's values: 24 layers, 1024 wide, 16 heads."""
    args.max_positions = safe_getattr(args, "max_positions", 512)
    roberta_large_architecture(args)
