"""A fine-tuned fairseq checkpoint as `sot_text.visualization` sees it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sot_fairseq.models.head import SentenceHead
from sot_fairseq.prediction.predictor import SentencePredictor
from sot_text.visualization.text_model import EncodedText, TextModel
from sot_text.visualization.words import Span
from sot_visual.model_view import ModelView

__all__ = ["FairseqTextModel"]

CODE = 2**32  # above the numbers of tokens: tells where in which text a token stands


class FairseqTextModel(TextModel):
    """A text classifier of fairseq.

    Args:
        predictor: The fine-tuned model with its tokenizer.
    """

    def __init__(self, predictor: SentencePredictor) -> None:
        self.predictor, self.module = predictor, predictor.model.eval()
        self.labels, self.multi_label = predictor.labels, predictor.multi_label
        self.module.freeze_backbone = False
        self.module.encoder.requires_grad_(True)
        self._padding = predictor.task.source_dictionary.pad()

    def encode(self, rows: Sequence[tuple[str, ...]]) -> list[EncodedText]:
        rows = self.predictor.check_rows(rows)
        encoder = self.predictor.encoder
        texts, places, spans = [], [], []
        for number in range(len(rows[0]) if rows else 0):
            shown, where = zip(*(encoder.encode_spans(row[number]) for row in rows), strict=True)
            texts.append(shown)
            spans.append(where)
            # </s>, the last one, has no place: -1
            places.append([CODE * (number + 1) + np.append(np.arange(len(each)), -1) for each in where])
        numbers = [encoder.encode_batch([row[number] for row in rows]) for number in range(len(texts))]
        tokens, codes = self.predictor.join(numbers), self.predictor.join(places)
        found = []
        for index in range(len(rows)):
            row_spans = [self._span(code, [each[index] for each in spans]) for code in codes[index].tolist()]
            shown = tuple(each[index] for each in texts)
            found.append(EncodedText(shown, {"tokens": tokens[index].tolist()}, row_spans))
        return found

    @staticmethod
    def _span(code: int, spans: Sequence[Sequence[tuple[int, int]]]) -> Span | None:
        text, place = divmod(code, CODE)
        if text == 0 or place >= CODE - 1 or place >= len(spans[text - 1]):
            return None
        return (text - 1, *spans[text - 1][place])

    def collate(self, encoded: Sequence[EncodedText]) -> tuple[Tensor, ...]:
        rows = [torch.tensor(item.fields["tokens"]) for item in encoded]
        batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self._padding)
        return (batch.to(next(self.module.parameters()).device),)

    def view(self, module: nn.Module | None = None) -> ModelView:
        model = self.module if module is None else module
        head = model.get_head(self.predictor.head)
        is_ours = isinstance(head, SentenceHead)
        return ModelView(
            tokens=lambda ids: (model.encoder(ids, True)[0], ids.eq(self._padding)),
            classify=lambda tokens, mask: head(tokens, mask) if is_ours else head(tokens),
            head=head if is_ours else None,
            embedding=model.encoder.sentence_encoder.embed_tokens,
            baseline=self._without_words,
            last_block=model.encoder.sentence_encoder.layers[-1],
            time_first=True,
        )

    def _without_words(self, ids: Tensor) -> Tensor:
        """The same with padding for every token that is not special, whose embedding is 0."""
        specials = self.predictor.task.source_dictionary
        return torch.where((ids == specials.bos()) | (ids == specials.eos()), ids, self._padding)
