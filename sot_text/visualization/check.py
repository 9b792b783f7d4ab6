"""Evaluation of word attributions on a set of texts: deletion and insertion of words, and randomised weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sot_text.visualization.explain import reencode, word_scores
from sot_text.visualization.text_model import EncodedText, TextModel
from sot_text.visualization.words import Word, group_words
from sot_visual.attribution import attribute
from sot_visual.check import MethodCheck, check_methods
from sot_visual.faithfulness import shuffle_weights

__all__ = ["check_text"]


def check_text(
    model: TextModel, rows: Sequence[tuple[str, ...]], methods: Sequence[str], batch_size: int
) -> list[MethodCheck]:
    """Evaluate methods on texts of at least two words, for the predicted class.

    The tokens of removed words are left out of the sequence; special tokens are kept.

    Raises:
        UsageError: if no text has two words, or the model does not support a method.
    """
    samples = [(item, group_words(item.texts, item.spans)) for item in model.encode(rows)]
    samples = [(item, words) for item, words in samples if len(words) > 1]
    view = model.view()
    random_view = model.view(shuffle_weights(model.module))
    logits = model.logits([item for item, _ in samples], batch_size) if samples else torch.empty(0, 1)
    targets = logits.argmax(dim=-1)

    def scores(index: int, method: str, is_random: bool) -> Tensor:
        item, words = samples[index]
        inputs = model.collate([item])
        target = targets[index : index + 1].to(inputs[0].device)
        return word_scores(words, attribute(random_view if is_random else view, inputs, target, method)[0])

    def evaluate(index: int, kept: Tensor) -> Tensor:
        item, words = samples[index]
        return _probabilities(model, item, words, kept, int(targets[index]), batch_size)

    return check_methods(methods, len(samples), scores, evaluate)


def _probabilities(
    model: TextModel, item: EncodedText, words: Sequence[Word], kept: Tensor, target: int, batch_size: int
) -> Tensor:
    """Probability of the class for each subset of the words (S, U): (S,)."""
    choices, inverse = torch.unique(kept, dim=0, return_inverse=True)  # subsets of short texts repeat
    logits = model.logits([reencode(item, words, choice) for choice in choices], batch_size)
    return model.probabilities(logits)[:, target][inverse]
