"""Attribution methods by name: the relevance of each input, or of each token of the backbone, to the logit of a class.

Methods in :data:`TOKEN_METHODS` score the tokens of the backbone, those in :data:`INPUT_METHODS` the inputs: pixels or
word embeddings. Gradient times input and integrated gradients are computed by captum.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sot_base.errors import UsageError
from sot_visual.attention import attention_relevance
from sot_visual.model_view import Inputs, ModelView, picked
from sot_visual.names import DEFAULT_METHOD

__all__ = ["DEFAULT_METHOD", "INPUT_METHODS", "METHODS", "TOKEN_METHODS", "attribute"]

logger = logging.getLogger(__name__)

STEPS = 20  # of integrated gradients
Method = Callable[[ModelView, Inputs, Tensor, str], Tensor]


def attribute(view: ModelView, inputs: Inputs, target: Tensor, method: str, part: str = "both") -> Tensor:
    """Attribute a logit to the tokens or the inputs.

    Args:
        view: The model, in evaluation mode.
        inputs: A batch.
        target: Class of each sample (B,).
        method: A name in :data:`METHODS`.
        part: The part of the logits: ``cls``, ``word`` or ``both``.

    Shape:
        -> (B, T) for a method on tokens and for texts, (B, H, W) for images; finite.

    Raises:
        UsageError: if the model does not support the method.
    """
    scores = METHODS[method](view, inputs, target, part)
    if not bool(torch.count_nonzero(scores)):
        logger.warning("method %s, part %s: all scores are 0", method, part)
    return scores.detach().float().nan_to_num(0.0, 0.0, 0.0)


def contributions(view: ModelView, inputs: Inputs, target: Tensor, part: str) -> Tensor:
    """The exact contributions of the word tokens, plus the class token's logit distributed by attention relevance.

    The scores of the words are `ClassificationHead.token_contributions`. The class token's part of the logit is a
    single number: it is distributed over the tokens in proportion to :func:`attention_relevance`, or left at the class
    token if the backbone has no such attention.
    """
    if view.head is None:
        raise UsageError("the model has no second-order head: method contributions; choose another --method")
    with torch.no_grad():
        tokens, mask = view.tokens(*inputs)
        try:
            split = view.head.token_contributions(tokens, mask)
        except ValueError as error:
            raise UsageError(f"{error}: method contributions; choose another --method") from error
        scores = split.gather(1, target.view(-1, 1, 1).expand(-1, -1, split.shape[-1]))[:, 0]
    if not view.head.config.has_cls_token:
        return view.to_sequence(scores[:, 1:], mask)
    if "cls" not in view.parts:  # the class token is pooled with the words, unused, or the only token used
        has_words = view.head.fusion.uses_words
        return view.to_sequence(scores, mask) if has_words else _spread(view, inputs, target, scores, mask, "both")
    words = torch.cat((torch.zeros_like(scores[:, :1]), scores[:, 1:]), dim=1)
    parts = []
    if part in ("word", "both"):
        parts.append(view.to_sequence(words, mask))
    if part in ("cls", "both"):
        with torch.no_grad():
            cls = picked(view.head.contributions(tokens, mask).cls, target)
        parts.append(_spread(view, inputs, target, cls.unsqueeze(1), mask, "cls", scores.shape[1]))
    return torch.stack(parts).sum(dim=0)


def _spread(
    view: ModelView,
    inputs: Inputs,
    target: Tensor,
    amount: Tensor,
    mask: Tensor | None,
    part: str,
    length: int | None = None,
) -> Tensor:
    """Distribute the class token's score, the first column of ``amount``, over the tokens of the sequence."""
    try:
        share = attention_relevance(view, inputs, target, part)
    except UsageError:
        at_cls = torch.zeros(len(amount), length or amount.shape[1], dtype=amount.dtype, device=amount.device)
        at_cls[:, 0] = amount[:, 0]
        return view.to_sequence(at_cls, mask)
    return amount[:, :1] * share / share.sum(dim=1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)


def grad_cam(view: ModelView, inputs: Inputs, target: Tensor, part: str) -> Tensor:
    """Grad-CAM (arXiv:1610.02391) at the input of the last block, or HiResCAM at the head's tokens if there is none.

    HiResCAM (arXiv:2011.08891) weights each token by its own gradient. Grad-CAM's weight, the mean of the gradients, is
    0 for a centred covariance, which does not change when the same vector is added to all tokens.
    """
    found: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        found.append(args[0])

    handle = view.last_block.register_forward_pre_hook(keep) if view.last_block is not None else None
    with torch.enable_grad():
        try:
            tokens, mask = view.tokens(*inputs)
        finally:
            if handle is not None:
                handle.remove()
        layer = found[-1] if found else tokens
        logit = picked(view.part_logits(tokens, mask, part), target).sum()
    (gradient,) = torch.autograd.grad(logit, layer)
    layer, gradient = layer.detach(), gradient.detach()
    if found and view.time_first:
        layer, gradient = layer.transpose(0, 1), gradient.transpose(0, 1)
    if found:
        return (layer * gradient.sum(dim=1, keepdim=True)).sum(dim=-1).clamp_min(0.0)
    scores = (layer * gradient).sum(dim=-1).clamp_min(0.0)
    return view.to_sequence(scores if mask is None else scores.masked_fill(mask, 0.0), mask)


def gradient_x_input(view: ModelView, inputs: Inputs, target: Tensor, part: str) -> Tensor:
    """Gradient times input, summed over channels."""
    captum = _captum()
    first, *others = inputs
    function = _part_function(view, part)
    if view.embedding is not None:
        method = captum.LayerGradientXActivation(function, view.embedding)
        scores: Tensor = method.attribute(first, target=target, additional_forward_args=tuple(others) or None)
        return scores.sum(dim=-1)
    image = first.detach().requires_grad_()
    scores = captum.InputXGradient(function).attribute(image, target=target)
    return scores.sum(dim=1)


def integrated_gradients(view: ModelView, inputs: Inputs, target: Tensor, part: str) -> Tensor:
    """Integrated gradients (arXiv:1703.01365) from an uninformative baseline, summed over channels."""
    captum = _captum()
    first, *others = inputs
    options = {"baselines": view.baseline(first), "target": target, "n_steps": STEPS}
    function = _part_function(view, part)
    if view.embedding is not None:
        method = captum.LayerIntegratedGradients(function, view.embedding)
        scores: Tensor = method.attribute(first, additional_forward_args=tuple(others) or None, **options)
        return scores.sum(dim=-1)
    scores = captum.IntegratedGradients(function).attribute(first, **options)
    return scores.sum(dim=1)


def random_scores(view: ModelView, inputs: Inputs, target: Tensor, part: str) -> Tensor:
    """Random scores, the baseline of the other methods."""
    first = inputs[0]
    shape = first.shape if view.embedding is not None else (first.shape[0], *first.shape[2:])
    return torch.rand(shape, device=first.device)


def _captum() -> Any:
    try:
        return importlib.import_module("captum.attr")
    except ImportError as error:
        raise UsageError("captum is not installed: this method needs it; pip install captum") from error


def _part_function(view: ModelView, part: str) -> Callable[..., Tensor]:
    return lambda *inputs: view.part_logits(*view.tokens(*inputs), part)


TOKEN_METHODS: dict[str, Method] = {
    "contributions": contributions,
    "relevance": attention_relevance,
    "grad_cam": grad_cam,
}
INPUT_METHODS: dict[str, Method] = {
    "gradient_x_input": gradient_x_input,
    "integrated_gradients": integrated_gradients,
    "random": random_scores,
}
METHODS: dict[str, Method] = {**TOKEN_METHODS, **INPUT_METHODS}
