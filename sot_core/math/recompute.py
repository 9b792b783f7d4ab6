"""Trade time for memory: compute a function of a batch a few samples at a time, and again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["recompute_in_parts"]


def recompute_in_parts(
    function: Callable[..., tuple[Tensor, ...]], size: int, tokens: Tensor, mask: Tensor | None, *parameters: Tensor
) -> tuple[Tensor, ...]:
    """Apply a function to parts of a batch, keep nothing but its input, and apply it again in the backward pass.

    `torch.utils.checkpoint` on each part would do the same, but put the gradients of the parts together in a second
    array of the tokens' size.

    Args:
        function: Called with some samples' tokens and mask and the parameters; gives tensors of as many samples.
        size: Samples in a part (> 0).
        tokens: Input of the function, samples first.
        mask: Padding mask of the tokens, or None.
        *parameters: Other tensors that may need a gradient.
    """
    outputs: tuple[Tensor, ...] = _Recompute.apply(function, size, tokens, mask, *parameters)
    return outputs


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        function: Callable[..., tuple[Tensor, ...]],
        size: int,
        tokens: Tensor,
        mask: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.function, ctx.size = function, size
        ctx.save_for_backward(tokens, mask, *parameters)
        found = [function(*part, *parameters) for _, *part in _parts(size, tokens, mask)]
        return tuple(torch.cat(outputs) for outputs in zip(*found, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tokens, mask, *parameters = ctx.saved_tensors
        leaves = [tokens, *parameters]
        needed = [i for i, need in enumerate((ctx.needs_input_grad[2], *ctx.needs_input_grad[4:])) if need]
        if torch.is_grad_enabled():  # create_graph=True: this derivative will be differentiated
            outputs = ctx.function(tokens, mask, *parameters)
            found = _differentiate(outputs, [leaves[i] for i in needed], grads, create_graph=True)
            sums = dict(zip(needed, found, strict=True))
        else:
            sums = {i: torch.zeros_like(leaves[i]) for i in needed}
            for place, part, part_mask in _parts(ctx.size, tokens, mask):
                with torch.enable_grad():
                    copies = [value.detach().requires_grad_(i in needed) for i, value in enumerate((part, *parameters))]
                    outputs = ctx.function(copies[0], part_mask, *copies[1:])
                found = _differentiate(outputs, [copies[i] for i in needed], [grad[place] for grad in grads])
                for i, grad in zip(needed, found, strict=True):
                    (sums[i][place] if i == 0 else sums[i]).add_(grad)
        return None, None, sums.get(0), None, *(sums.get(i) for i in range(1, len(leaves)))


def _differentiate(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor], create_graph: bool = False
) -> tuple[Tensor, ...]:
    """The gradients of the inputs through those outputs that depend on them."""
    pairs = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if output.requires_grad]
    outputs, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(outputs, inputs, grads, create_graph=create_graph)


def _parts(size: int, tokens: Tensor, mask: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    for start in range(0, max(1, len(tokens)), size):
        place = slice(start, start + size)
        yield place, tokens[place], None if mask is None else mask[place]
