"""Batch statistics over processes, and of batches with a single value per channel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import torch
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["single_values_evaluated", "synchronize_batch_norm"]


class _OverProcesses:
    """The forward pass of a BatchNorm layer whose statistics are those of the batches of all processes.

    Their sizes may differ. torch's SyncBatchNorm does the same, but on GPUs only.

    Shape:
        (B, C, *) -> (B, C, *).
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        values = x.transpose(0, 1).flatten(1).double()  # (C, n)
        count = torch.full_like(values[:, 0], values.shape[1])
        total, squares, count = all_reduce(torch.stack([values.sum(1), values.square().sum(1), count]))
        mean = total / count
        variance = (squares / count - mean.square()).clamp_min(0)
        if self.track_running_stats:
            self._update_running(mean.detach(), (variance * count / (count - 1).clamp_min(1)).detach())
        shape = (1, -1, *[1] * (x.dim() - 2))
        scale = torch.rsqrt(variance + self.eps)
        if self.affine:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        return (x * scale.view(shape) + shift.view(shape)).to(x.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


class _BatchNorm1d(_OverProcesses, nn.BatchNorm1d):
    pass


class _BatchNorm2d(_OverProcesses, nn.BatchNorm2d):
    pass


_CLASSES = {nn.BatchNorm1d: _BatchNorm1d, nn.BatchNorm2d: _BatchNorm2d}


def synchronize_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """Let the BatchNorm layers of a model use the statistics of all processes; parameters and names stay.

    On a GPU timm converts them to torch's SyncBatchNorm. On a CPU only plain BatchNorm layers are converted, by giving
    them a subclass with another forward pass: the modules stay the ones that the model and its frozen part refer to.
    """
    if device.type == "cuda":
        return convert_sync_batchnorm(model)
    for module in model.modules():
        module.__class__ = _CLASSES.get(type(module), type(module))
    return model


@contextlib.contextmanager
def single_values_evaluated(model: nn.Module, images: Tensor) -> Iterator[None]:
    """For a batch of one image: BatchNorm layers that would see one value per channel use their running statistics.

    torch refuses to compute a variance of one value. Which layers these are is found by a forward pass in evaluation
    mode. Other batches, and layers with statistics over processes, are not affected.
    """
    synchronized = (nn.SyncBatchNorm, _OverProcesses)
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and not isinstance(m, synchronized) and m.training]
    if len(images) != 1 or not norms:
        yield
        return
    single: list[nn.Module] = []
    hooks = [norm.register_forward_pre_hook(partial(_note_single, single)) for norm in norms]
    modes = [(module, module.training) for module in model.modules()]
    with torch.no_grad():
        model.eval()(images)
    for hook in hooks:
        hook.remove()
    for module, mode in modes:
        module.training = mode and module not in single
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _note_single(single: list[nn.Module], module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if inputs[0].numel() == inputs[0].shape[1]:
        single.append(module)
