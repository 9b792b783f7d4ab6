"""Predictions for texts, with scores of the words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sot_base.errors import UsageError
from sot_base.names import name_key
from sot_text.visualization.text_model import EncodedText, TextModel
from sot_text.visualization.words import Word, group_words
from sot_visual.attribution import attribute

__all__ = ["Explanation", "explain", "find_class", "word_scores"]


@dataclass(frozen=True)
class Explanation:
    """A prediction and the scores of the words.

    Attributes:
        texts: The text, or the two of a pair.
        words: Their words.
        scores: The score of each word, by part of the logits (``cls``, ``word``, ``both``).
        explained: Name of the explained class; empty for regression.
        prediction: Predicted class, or number.
        without_words: Prediction from the class token's part of the logits; None if the logits do not split.
        probability: Probability of the explained class; the number itself for regression.
        truth: The label; None if not known.
    """

    texts: tuple[str, ...]
    words: list[Word]
    scores: dict[str, list[float]]
    explained: str
    prediction: str
    without_words: str | None
    probability: float
    truth: str | None

    @property
    def right(self) -> bool | None:
        """Whether the prediction is the label; None without a label, or for regression."""
        if self.truth is None or not self.explained:
            return None
        return name_key(self.truth) == name_key(self.prediction)


def find_class(model: TextModel, name: str | None) -> int | None:
    """The index of a class by its name; None if no name is given.

    Raises:
        UsageError: if there is no such class.
    """
    if name is None:
        return None
    keys = [name_key(label) for label in model.labels]
    if name_key(name) not in keys:
        raise UsageError(
            f"no such class: --class {name}; give one of {', '.join(model.labels) or 'none, it is a regression'}"
        )
    return keys.index(name_key(name))


def explain(
    model: TextModel,
    rows: Sequence[tuple[str, ...]],
    truths: Sequence[str | None],
    method: str,
    chosen: int | None = None,
    batch_size: int = 16,
) -> Iterator[Explanation]:
    """Explain rows, a batch at a time.

    Args:
        model: The model.
        rows: Texts or pairs.
        truths: The label of each row; None if not known.
        method: A name in `sot_visual.attribution.METHODS`.
        chosen: Index of the class to explain; None: the predicted one.
        batch_size: Rows of a batch.

    Raises:
        UsageError: if the model does not support the method.
    """
    view = model.view()
    for start in range(0, len(rows), batch_size):
        encoded = model.encode(rows[start : start + batch_size])
        inputs = model.collate(encoded)
        with torch.no_grad():
            tokens, mask = view.tokens(*inputs)
            logits = view.classify(tokens, mask).float()
            cls = view.part_logits(tokens, mask, "cls").float() if "cls" in view.parts else None
        target = logits.argmax(dim=-1) if chosen is None else torch.full_like(logits[:, 0], chosen, dtype=torch.long)
        scores = {part: attribute(view, inputs, target, method, part) for part in view.parts}
        probabilities = model.probabilities(logits).gather(1, target.unsqueeze(1))[:, 0].tolist()
        for index, item in enumerate(encoded):
            words = group_words(item.texts, item.spans)
            yield Explanation(
                item.texts,
                words,
                {part: word_scores(words, values[index]).tolist() for part, values in scores.items()},
                model.labels[int(target[index])] if model.labels else "",
                model.label(logits[index]),
                None if cls is None else model.label(cls[index]),
                probabilities[index],
                _known(model, truths[start + index]),
            )


def word_scores(words: Sequence[Word], scores: Tensor) -> Tensor:
    """Scores of the words (U,), each the sum over its sub-words, from scores of the tokens (T,)."""
    return torch.stack([scores[list(word.tokens)].sum() for word in words]) if words else scores.new_zeros(0)


def _known(model: TextModel, truth: str | None) -> str | None:
    """The label if it is one of the model's, else None: test files have placeholders."""
    if truth is None or not model.labels:
        return truth
    keys = {name_key(label) for label in model.labels}
    return truth if model.multi_label or name_key(truth) in keys else None


def reencode(item: EncodedText, words: Sequence[Word], kept: Tensor) -> EncodedText:
    """The text with only the words in ``kept`` (U,), bool, and all special tokens."""
    dropped = {place for word, keep in zip(words, kept.tolist(), strict=True) if not keep for place in word.tokens}
    return item.keep([place for place in range(len(item.spans)) if place not in dropped])
