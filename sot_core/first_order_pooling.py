"""Poolings of each channel by itself: mean, standard deviation, generalised mean and maximum of the word tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sot_core.math.padding import clear_padding, clear_without_tokens, count_valid, fill_empty
from sot_core.math.precision import at_least_float32, no_autocast
from sot_core.math.statistics import token_deviation, token_mean
from sot_core.pooling import Pooling

__all__ = ["GeneralizedMeanPool", "GlobalAveragePool", "MaxPool", "MeanDeviationPool"]

MIN_POWER = 0.1  # the logarithm of a mean is divided by the power
LOG_ZERO = -1e30  # finite, also divided by the square of the least power


class GlobalAveragePool(Pooling):
    """Mean of the valid word tokens.

    Args:
        embed_dim: Token width D.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, D), in the dtype of ``tokens``.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.out_dim = embed_dim

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return token_mean(tokens, padding_mask).to(tokens.dtype)


class MeanDeviationPool(Pooling):
    """Mean and standard deviation of the valid word tokens side by side (statistics pooling).

    The variance is divided by n: a single word has the deviation 0.

    Args:
        embed_dim: Token width D.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, 2 * D), in the dtype of ``tokens``.

    Reference:
        arXiv:1803.10963, whose statistics pooling has equal weights.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.out_dim = 2 * embed_dim

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        tokens, padding_mask = fill_empty(tokens, padding_mask)
        mean = token_mean(tokens, padding_mask)
        return torch.cat((mean, token_deviation(tokens, padding_mask, mean)), dim=-1).to(tokens.dtype)


class MaxPool(Pooling):
    """Largest value of each channel over the valid word tokens.

    Args:
        embed_dim: Token width D.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, D), in the dtype of ``tokens``.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.out_dim = embed_dim

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        tokens, padding_mask = fill_empty(tokens, padding_mask)
        if padding_mask is not None:
            tokens = tokens.masked_fill(padding_mask.unsqueeze(-1), torch.finfo(tokens.dtype).min)
        return clear_without_tokens(tokens.amax(dim=1), padding_mask)


class GeneralizedMeanPool(Pooling):
    r"""Generalised mean of the valid word tokens with one learned power (GeM).

    .. math:: \left(\frac1n \sum_i \max(z_i, \epsilon)^p\right)^{1/p}

    Powers are taken as logarithms: none overflows. As in the paper, whose features are not negative, values below
    epsilon count as epsilon.

    Args:
        embed_dim: Token width D.
        power: p at the start, at least 0.1; a learned p below 0.1 counts as 0.1.
        eps: The smallest value that is told from others (> 0).

    Attributes:
        power: p.

    Shape:
        tokens (B, N, D), padding_mask (B, N) bool, True = ignore -> (B, D), in the dtype of ``tokens``.

    Reference:
        arXiv:1711.02512, section 3.2, equation 3, with one p for all channels and 3 as its start.
    """

    def __init__(self, embed_dim: int, power: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.out_dim, self.start, self.eps = embed_dim, power, eps
        self.power = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set p to its start."""
        nn.init.constant_(self.power, self.start)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        tokens, padding_mask = fill_empty(tokens, padding_mask)
        with no_autocast(tokens):
            logs, power = self.log_powers(tokens, padding_mask)
            if padding_mask is None:
                count = torch.full_like(logs[:, 0, :1], tokens.shape[1])
            else:
                count = count_valid(padding_mask).to(logs.dtype).unsqueeze(-1)
            mean = ((logs.logsumexp(dim=1) - count.log()) / power).exp()
        return clear_without_tokens(mean, padding_mask).to(tokens.dtype)

    def log_powers(self, tokens: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logarithms of the powers of the tokens' values, the least at padding, and p, of at least float32.

        Shape:
            tokens (B, N, D), padding_mask (B, N) -> (B, N, D) and (1,).
        """
        values = clear_padding(tokens, padding_mask).to(at_least_float32(tokens.dtype)).clamp_min(self.eps)
        power = self.power.to(values.dtype).clamp_min(MIN_POWER)
        logs = power * values.log()
        if padding_mask is not None:
            logs = logs.masked_fill(padding_mask.unsqueeze(-1), LOG_ZERO)
        return logs, power

    def extra_repr(self) -> str:
        return f"start={self.start:g}, eps={self.eps:g}"
