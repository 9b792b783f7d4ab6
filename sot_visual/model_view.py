"""A classifier as the attribution methods see it: inputs, the tokens that the head reads, logits in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from sot_core import ClassificationHead
from sot_visual.names import PARTS

__all__ = ["PART_NAMES", "HeadInput", "Inputs", "ModelView", "capture_head_input", "picked", "same_places"]

PART_NAMES = {"cls": "ClassT", "word": "WordT", "both": "ClassT + WordT"}  # as in figures of arXiv:2104.10935
Inputs = tuple[Tensor, ...]
HeadInput = tuple[Tensor, Tensor | None]


def same_places(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Identity, for heads that read the backbone's sequence unchanged."""
    return scores


@dataclass(frozen=True)
class ModelView:
    """A classifier, split into its backbone and its head.

    Attributes:
        tokens: Maps inputs to what the head reads, tokens and padding mask; differentiable.
        classify: Maps tokens and padding mask to logits; differentiable.
        head: The second-order head; None for any other head.
        embedding: The module of the word embeddings, whose output is explained; None for images.
        baseline: Maps the first input to an uninformative one, for integrated gradients.
        to_sequence: Maps scores of the head's tokens (B, T) and their mask to scores of the backbone's tokens.
        last_block: The backbone's last block, whose input Grad-CAM reads; None: Grad-CAM reads the head's tokens.
        time_first: Whether the input of the last block is (T, B, D).

    Shape:
        Inputs are tensors (B, ...), the first of which is explained; tokens (B, T, D), mask (B, T), logits (B, K).
    """

    tokens: Callable[..., HeadInput]
    classify: Callable[[Tensor, Tensor | None], Tensor]
    head: ClassificationHead | None
    embedding: nn.Module | None
    baseline: Callable[[Tensor], Tensor]
    to_sequence: Callable[[Tensor, Tensor | None], Tensor] = same_places
    last_block: nn.Module | None = None
    time_first: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """The members of :data:`PARTS` into which the logits can be split; ``both`` alone if they cannot."""
        if self.head is None or self.head.fusion.pools_cls:
            return ("both",)
        return PARTS if self.head.fusion.uses_cls and self._has_words else ("both",)

    @property
    def _has_words(self) -> bool:
        return self.head is not None and (self.head.fusion.uses_words or hasattr(self.head, "dense_fc"))

    def logits(self, *inputs: Tensor) -> Tensor:
        """The logits (B, K)."""
        return self.classify(*self.tokens(*inputs))

    def part_logits(self, tokens: Tensor, mask: Tensor | None, part: str) -> Tensor:
        """The part of the logits (B, K) that comes from the class token, the words or both."""
        if part == "both" or self.head is None or part not in self.parts:
            return self.classify(tokens, mask)
        cls, word = self.head.contributions(tokens, mask)
        return cls if part == "cls" else word


def capture_head_input(head: nn.Module, run: Callable[[], object]) -> HeadInput:
    """Run a model and return the tokens and the padding mask with which it called its head."""
    found: list[HeadInput] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        found.append((args[0], args[1] if len(args) > 1 else None))

    handle = head.register_forward_pre_hook(keep)
    try:
        run()
    finally:
        handle.remove()
    return found[-1]


def picked(logits: Tensor, target: Tensor) -> Tensor:
    """The logit of each sample's class: (B, K), (B,) -> (B,)."""
    return logits.gather(1, target.unsqueeze(1))[:, 0]
