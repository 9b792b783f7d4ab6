"""Run a model on the meta device, to find shapes and gradient paths without computing anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from timm.models import get_model_input_config
from torch import nn
from torch.func import functional_call

__all__ = ["evaluating", "feature_shape", "parameters_without_gradient"]


class _Call(nn.Module):
    """A method of a model as a module of its own: what `functional_call` can run."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, image: torch.Tensor) -> Any:
        return getattr(self.model, self.method)(image)


def feature_shape(model: nn.Module) -> torch.Size | None:
    """Shape of ``forward_features`` for two images; None if it gives no tensor."""
    with torch.no_grad():
        features, _ = _run_on_meta(model, "forward_features")
    return features.shape if isinstance(features, torch.Tensor) else None


def parameters_without_gradient(model: nn.Module) -> list[str]:
    """Names of the trainable parameters that the output does not depend on."""
    with torch.inference_mode(False), torch.enable_grad():
        output, parameters = _run_on_meta(model, "forward")
        grads = torch.autograd.grad(output.sum(), list(parameters.values()), allow_unused=True)
    return [name for name, grad in zip(parameters, grads, strict=True) if grad is None]


def _run_on_meta(model: nn.Module, method: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The output of a method in evaluation mode, and the model's trainable parameters on the meta device."""
    tensors = {
        name: torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    image = torch.empty(2, *get_model_input_config(model)["input_size"], device="meta", dtype=_dtype(model))
    with evaluating(model):
        output = functional_call(_Call(model, method), {f"model.{name}": t for name, t in tensors.items()}, (image,))
    return output, {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def _dtype(model: nn.Module) -> torch.dtype:
    return next((parameter.dtype for parameter in model.parameters()), torch.get_default_dtype())


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a block; every module's own mode comes back after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train()  # models that cache tensors in evaluation mode, here meta tensors, drop them in training mode
        for module, mode in modes:
            module.training = mode
