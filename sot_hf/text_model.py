"""The interface of `sot_text.visualization` to fine-tuned Hugging Face models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from sot_base.errors import UsageError
from sot_hf.load_config import saved_labels
from sot_hf.load_model import MULTI_LABEL
from sot_hf.modeling import SoTForSequenceClassification
from sot_text.visualization.text_model import EncodedText, TextModel
from sot_text.visualization.words import Span
from sot_visual.model_view import HeadInput, ModelView, capture_head_input, same_places

__all__ = ["HuggingFaceTextModel"]

TYPES = "token_type_ids"


class HuggingFaceTextModel(TextModel):
    """A Hugging Face text classifier.

    Args:
        model: The fine-tuned model.
        tokenizer: Its tokenizer.
        max_length: Maximum number of tokens of a sample, special tokens included.

    Raises:
        UsageError: if the tokenizer does not return offsets.
    """

    def __init__(
        self, model: SoTForSequenceClassification, tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> None:
        if not tokenizer.is_fast:
            raise UsageError(
                f"the tokenizer does not say where tokens come from: {tokenizer.name_or_path}; convert it to a fast one"
            )
        self.module, self.tokenizer, self.max_length = model.eval(), tokenizer, max_length
        self.labels = saved_labels(model.config) or []
        self.multi_label = model.config.problem_type == MULTI_LABEL
        model.freeze_backbone(False)
        model.eval()

    def encode(self, rows: Sequence[tuple[str, ...]]) -> list[EncodedText]:
        columns = [list(column) for column in zip(*rows, strict=True)]
        limit: dict[str, Any] = {"truncation": "longest_first", "max_length": self.max_length}
        batch = self.tokenizer(*columns, return_offsets_mapping=True, verbose=False, **limit)
        names = [name for name in ("input_ids", TYPES) if name in batch]
        found = []
        for index, row in enumerate(rows):
            texts = batch.sequence_ids(index)
            spans: list[Span | None] = [
                None if text is None else (text, *offsets)
                for text, offsets in zip(texts, batch["offset_mapping"][index], strict=True)
            ]
            found.append(EncodedText(tuple(row), {name: batch[name][index] for name in names}, spans))
        return found

    def collate(self, encoded: Sequence[EncodedText]) -> tuple[Tensor, ...]:
        device = self.module.device
        lengths = torch.tensor([len(item.spans) for item in encoded])
        mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).long()
        values = {"input_ids": self.tokenizer.pad_token_id, TYPES: 0}
        fields = [
            nn.utils.rnn.pad_sequence(
                [torch.tensor(item.fields[name]) for item in encoded], batch_first=True, padding_value=values[name]
            )
            for name in encoded[0].fields
        ]
        return tuple(field.to(device) for field in (fields[0], mask, *fields[1:]))

    def view(self, module: nn.Module | None = None) -> ModelView:
        model = self.module if module is None else module
        blocks = [part for part in model.backbone.modules() if isinstance(part, nn.ModuleList) and len(part)]

        def tokens(ids: Tensor, mask: Tensor, types: Tensor | None = None) -> HeadInput:
            return capture_head_input(
                model.classifier, lambda: model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            )

        return ModelView(
            tokens=tokens,
            classify=model.classifier,
            head=model.classifier,
            embedding=model.get_input_embeddings(),
            baseline=self._without_words,
            to_sequence=same_places if model.config.cls_position == "first" else _last_token_back,
            last_block=max(blocks, key=len)[-1] if blocks else None,
        )

    def _without_words(self, ids: Tensor) -> Tensor:
        """Replace all tokens but special ones by padding."""
        special = torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids, device=ids.device))
        return torch.where(special, ids, self.tokenizer.pad_token_id)


def _last_token_back(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores (B, T) of a decoder's sequence from those of its head, which reads the last token first: (B, 1 + T)."""
    sequence = scores[:, 1:].clone()
    if mask is None:
        last = torch.full_like(scores[:, :1], sequence.shape[1] - 1, dtype=torch.long)
    else:
        last = (~mask[:, 1:]).sum(dim=1, keepdim=True)  # the last token stands after the words
    return sequence.scatter_add(1, last, scores[:, :1])
