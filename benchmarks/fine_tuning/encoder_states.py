"""What an encoder's states hold at a moment of its tuning: the rank of the words, and what new heads read from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from benchmarks.fine_tuning.results_file import Step
from sot_hf.data import TextDataset
from sot_hf.token_states import MAX_TOKENS, TextEncoder, rows_digest
from sot_probe.layer_head import LayerHead
from sot_probe.objective import Objective
from sot_probe.row_cache import RowCache
from sot_probe.states import TokenStates
from sot_probe.trainee import Candidate, TrainingSettings
from sot_probe.training import Split, predict, require_success, train_heads

__all__ = ["PROBES", "effective_rank", "encode", "read_step", "row_means", "train_probes", "words_of"]

PROBES: dict[str, dict[str, Any]] = {
    "cls": {"fusion": "cls"},
    "gap-words": {"pooling": "gap", "fusion": "words"},
    "mgcrp-words": {"pooling": "mgcrp", "fusion": "words"},
}
PROBE_SETTINGS = TrainingSettings(lr=3e-3, epochs=8)
CLASSES = Objective("classes", 2)


def encode(encoder: TextEncoder, rows: TextDataset, bf16: bool, cache: RowCache | None = None) -> Split:
    """The states of tokenized rows, and their targets."""
    encodings = rows.encodings

    def run(chosen: np.ndarray) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return encoder.encode([encodings[row] for row in chosen.tolist()])

    lengths = np.array([len(row["input_ids"]) for row in encodings])
    states = (cache or RowCache()).states(rows_digest(encodings), lengths, run, MAX_TOKENS)
    return Split(states, torch.from_numpy(rows.targets))


def train_probes(
    encoder: TextEncoder,
    heads: Mapping[str, Mapping[str, Any]],
    train: Split,
    seed: int,
    settings: TrainingSettings = PROBE_SETTINGS,
) -> dict[str, LayerHead]:
    """Train heads on stored states.

    Args:
        encoder: Creates the heads.
        heads: Their fields of `HeadConfig`, by name.
        train: The states.
        seed: Seed of initial weights, order of the batches and dropout.
        settings: How they are trained.

    Raises:
        UsageError: if a training fails.
    """

    def creates(fields: Mapping[str, Any]) -> Callable[[], LayerHead]:
        return lambda: LayerHead(encoder.create_head(fields, CLASSES.num_classes, encoder.start))

    candidates = [Candidate(creates(fields), settings) for fields in heads.values()]
    outcomes = train_heads(candidates, train, CLASSES, seed)
    require_success(outcomes)
    return {name: outcome.head for name, outcome in zip(heads, outcomes, strict=True)}


def words_of(states: TokenStates) -> tuple[Tensor, Tensor]:
    """All tokens of all rows but the class tokens, and the row of each.

    Shape:
        (tokens, D) and (tokens,).
    """
    tokens = states.layers[0]
    rows = torch.arange(len(states)).repeat_interleave(states.lengths)
    is_word = torch.ones(len(tokens), dtype=torch.bool)
    is_word[states.starts] = False
    return tokens[is_word].double(), rows[is_word]


def effective_rank(tokens: Tensor) -> tuple[float, float, Tensor]:
    """The effective rank of centred tokens, the share of their variance in the first direction, and that direction.

    The effective rank is the exponential of the entropy of the singular values divided by their sum.

    Shape:
        tokens (N, D); the direction (D,).

    Reference:
        Roy and Vetterli, The effective rank (EUSIPCO 2007).
    """
    _, values, directions = torch.linalg.svd(tokens.double() - tokens.double().mean(dim=0), full_matrices=False)
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float((-(shares * shares.log()).sum()).exp()), float(values[0] ** 2 / (values**2).sum()), directions[0]


def row_means(words: Tensor, rows: Tensor) -> Tensor:
    """The mean word of each row, (tokens, D) and (tokens,) -> (rows, D)."""
    total = torch.zeros(int(rows.max()) + 1, words.shape[1], dtype=words.dtype).index_add_(0, rows, words)
    return total / rows.bincount().unsqueeze(1)


def read_step(
    encoder: TextEncoder,
    backbone: nn.Module | None,
    rows: tuple[TextDataset, TextDataset],
    measure: Callable[[np.ndarray], float],
    seed: int,
    epoch: int,
    bf16: bool,
    cache: RowCache | None = None,
) -> Step:
    """Freeze an encoder as it is, and say what its states hold.

    Args:
        encoder: Runs the backbone; its own weights are replaced.
        backbone: The backbone; None: that of the encoder, which was not tuned.
        rows: Training rows and test rows.
        measure: The metric (percent) of predictions for the test rows.
        seed: Seed of the heads.
        epoch: Number of epochs of tuning.
        bf16: Whether the encoder runs in bfloat16 autocast.
        cache: Keeps the states of rows, for an encoder that was not tuned.
    """
    if backbone is not None:
        encoder.model.backbone.load_state_dict(backbone.state_dict())
    train, test = (encode(encoder, own, bf16, cache) for own in rows)
    heads = train_probes(encoder, PROBES, train, seed)
    logits = predict(list(heads.values()), test.states)
    values = [measure(CLASSES.decide(own)) for own in logits]
    words, places = words_of(test.states)
    means = row_means(words, places)
    rank, share, direction = effective_rank(words)
    auc = float(roc_auc_score(test.targets, means @ direction))
    return Step(
        epoch,
        rank,
        share,
        probes=dict(zip(heads, values, strict=True)),
        rank_within=effective_rank(words - means[places])[0],
        direction_auc=100 * max(auc, 1 - auc),
    )
