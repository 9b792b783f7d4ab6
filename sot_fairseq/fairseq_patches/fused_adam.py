"""fairseq's Adam in torch's fused kernel, which updates all weights in one pass instead of one operation at a time."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from fairseq.optim.adam import Adam, FairseqAdam
from torch import Tensor
from torch.optim.adamw import adamw

__all__ = ["FusedAdam", "update_in_one_pass"]

DEVICES = ("cpu", "cuda")


def update_in_one_pass() -> None:
    """Let ``--optimizer adam`` use :class:`FusedAdam`, as it uses apex's on a GPU; not with ``--use-old-adam``."""
    stock = FairseqAdam.__init__
    if getattr(stock, "makes_fused", False):
        return

    @functools.wraps(stock)
    def create(self: Any, cfg: Any, params: Any) -> None:
        params = list(params)
        stock(self, cfg, params)
        if type(self._optimizer) is Adam and not getattr(cfg, "use_old_adam", False):
            self._optimizer = FusedAdam(params, **self.optimizer_config)

    create.makes_fused = True  # type: ignore[attr-defined]
    FairseqAdam.__init__ = create


class FusedAdam(Adam):
    """fairseq's ``Adam``: the same formula and state, so that checkpoints of the two are exchangeable.

    Results differ by rounding. Weights in half precision, and devices without the kernel, are left to fairseq's loop.

    fairseq adds epsilon to the root of the second moment before the correction of its bias, torch after it:
    ``sqrt(v) + eps = sqrt(1 - beta2^t) (sqrt(v / (1 - beta2^t)) + eps / sqrt(1 - beta2^t))``.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if not all(_fits(weight) for group in self.param_groups for weight in group["params"]):
            return super().step(closure)
        loss = None if closure is None else closure()
        for group in self.param_groups:
            by_step: dict[int, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_step[self._begin_step(weight)].append(weight)
            for step, weights in by_step.items():
                self._update(group, step, weights)
        return loss

    def _begin_step(self, weight: Tensor) -> int:
        """Count a step in the weight's state, which is made on the first."""
        state = self.state[weight]
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
        state["step"] += 1
        return int(state["step"])

    @torch.no_grad()
    def _update(self, group: dict[str, Any], step: int, weights: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        steps = torch.full((len(weights),), step - 1.0, device=weights[0].device)  # the kernel counts this one
        adamw(
            weights,
            [weight.grad for weight in weights],
            [self.state[weight]["exp_avg"] for weight in weights],
            [self.state[weight]["exp_avg_sq"] for weight in weights],
            [],
            list(steps.unbind()),
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"] / math.sqrt(1.0 - beta2**step),
            maximize=False,
        )


def _fits(weight: Tensor) -> bool:
    grad = weight.grad
    kinds = (torch.float32, torch.float64)
    return (
        weight.device.type in DEVICES
        and weight.dtype in kinds
        and (grad is None or (grad.dtype == weight.dtype and not grad.is_sparse))
    )
