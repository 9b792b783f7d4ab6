"""The top blocks of a vision transformer, which run on the stored states of the block below them."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from vision.models.head_mixin import HeadMixin

__all__ = ["TopLayers"]

NORMS = ("norm", "fc_norm")  # after the last block


class TopLayers(nn.Module):
    """A copy of the top blocks of a model, and of the norms after the last one.

    Args:
        model: The model.
        count: Number of blocks (> 0).

    Shape:
        tokens (B, P + N, D) as the block below gives them, P prefix tokens first; no padding mask -> (B, 1 + N, D) or,
        without a class token, (B, N, D), the tokens that the head reads; None.
    """

    def __init__(self, model: HeadMixin, count: int) -> None:
        super().__init__()
        head = nn.Identity()
        head.config = model.head.config  # says which tokens it reads
        left_out: dict[int, nn.Module] = {id(block): nn.Identity() for block in model.blocks[:-count]}
        left_out |= {id(model.patch_embed): nn.Identity(), id(model.head): head}
        self.model = copy.deepcopy(model, left_out)
        self.model.blocks = self.model.blocks[-count:]
        self.model.requires_grad_(False)
        for module in self._trained(self.model):
            module.requires_grad_(True)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, None]:
        for block in self.model.blocks:
            tokens = block(tokens)
        return self.model.word_tokens(self.model.norm(tokens)), None

    def load_into(self, model: HeadMixin) -> None:
        """Copy the weights into a whole model."""
        for own, other in zip(self._trained(self.model), self._trained(model), strict=True):
            other.load_state_dict(own.state_dict())

    def _trained(self, model: HeadMixin) -> list[nn.Module]:
        norms = [getattr(model, name, None) for name in NORMS]
        return [*model.blocks[-len(self.model.blocks) :], *(norm for norm in norms if isinstance(norm, nn.Module))]
