"""An encoder on a GPU that does not ask whether its batch has padding: that would wait for the GPU once a layer."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models.transformer.transformer_encoder import TransformerEncoderBase
from torch import Tensor

__all__ = ["never_wait_for_padding", "with_padding_mask"]


def never_wait_for_padding() -> None:
    """Let fairseq's transformer encoders on a GPU always use the padding mask; on the CPU the question costs nothing.

    Without padding the mask changes no value. Recorded graphs (``torch.jit.script``) are fairseq's own.
    """
    stock = TransformerEncoderBase.forward_scriptable
    if getattr(stock, "never_waits", False):
        return

    def forward_scriptable(
        self: Any,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> Any:
        if src_tokens.device.type == "cpu" or torch.jit.is_scripting():
            return stock(self, src_tokens, src_lengths, return_all_hiddens, token_embeddings)
        return with_padding_mask(self, src_tokens, return_all_hiddens, token_embeddings)

    forward_scriptable.never_waits = True  # type: ignore[attr-defined]
    TransformerEncoderBase.forward_scriptable = forward_scriptable


def with_padding_mask(
    encoder: Any, src_tokens: Tensor, return_all_hiddens: bool = False, token_embeddings: Tensor | None = None
) -> dict[str, list[Any]]:
    """Fairseq's ``TransformerEncoderBase.forward_scriptable`` for a batch that has padding.

    Args:
        encoder: The encoder.
        src_tokens: Token numbers.
        return_all_hiddens: Whether to return the states of all layers.
        token_embeddings: Embeddings of the tokens, if they are known.

    Shape:
        src_tokens (B, T) -> fairseq's dictionary; its ``encoder_out`` holds states (T, B, D).
    """
    mask = src_tokens.eq(encoder.padding_idx)
    x, embedding = encoder.forward_embedding(src_tokens, token_embeddings)
    x = (x * (1 - mask.unsqueeze(-1).type_as(x))).transpose(0, 1)
    states, results = [x] if return_all_hiddens else [], []
    for layer in encoder.layers:
        output = layer(x, encoder_padding_mask=mask)
        x, result = output if isinstance(output, tuple) and len(output) == 2 else (output, None)
        if return_all_hiddens:
            states.append(x)
            results.append(result)
    if encoder.layer_norm is not None:
        x = encoder.layer_norm(x)
    return {
        "encoder_out": [x],
        "encoder_padding_mask": [mask],
        "encoder_embedding": [embedding],
        "encoder_states": states,
        "fc_results": results,
        "src_tokens": [],
        "src_lengths": [src_tokens.ne(encoder.padding_idx).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()],
    }
