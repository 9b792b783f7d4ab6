"""The dense blocks of the DenseNet token embedding, and the transitions between them.

Reference: arXiv:1608.06993.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.densenet import DenseBlock
from torch import Tensor, nn

from sot_core.math.eager import has_hooks, is_recorded
from sot_core.math.precision import at_least_float32, autocast_dtype, no_autocast

__all__ = ["ReluDenseBlock", "Transition"]


class ReluDenseBlock(DenseBlock):
    """Dense block whose layers have ReLU alone: each feature map is rectified once, not again for every later layer.

    Which form runs: in eager mode one with a derivative of its own; where the operations are recorded, or a layer has
    hooks, the layers one after the other.

    Shape:
        (B, C, H, W) -> (B, C + layers * growth, H, W).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, norm_layer=lambda chans, **dd: nn.ReLU(), **kwargs)

    def forward(self, init_features: Tensor) -> Tensor:
        if is_recorded() or any(has_hooks(module) for module in self.modules()):
            features, rectified = [init_features], [F.relu(init_features)]
            for layer in self.values():
                features.append(layer.conv2(layer.norm2(layer.conv1(torch.cat(rectified, dim=1)))))
                rectified.append(F.relu(features[-1]))
            return torch.cat(features, dim=1)
        dtype = autocast_dtype(init_features)
        weights = [conv.weight.to(dtype) for layer in self.values() for conv in (layer.conv1, layer.conv2)]
        return _DenseLayers.apply(init_features.to(dtype), *weights)


class _DenseLayers(torch.autograd.Function):
    """The layers of a dense block, all in one array of features with the channels last.

    A layer reads the features so far where they lie and writes its own behind them, so nothing is concatenated; the
    backward pass adds to one array of gradients in the same way. Kept for it are the rectified features and the output
    of each 1x1 convolution, while autograd would keep the input of each layer as well.
    """

    @staticmethod
    def forward(ctx: Any, init: Tensor, *weights: Tensor) -> Tensor:
        B, C, H, W = init.shape
        growth, width = len(weights[1]), C + sum(len(weight) for weight in weights[1::2])
        features = init.new_empty(B, H, W, width)
        rectified = torch.empty_like(features)
        bottlenecks = []
        _write(features, rectified, 0, init)
        with no_autocast(init):
            for index, (point, conv) in enumerate(_pairs(weights)):
                end = C + index * growth
                bottlenecks.append((_rows(rectified)[:, :end] @ point.flatten(1).mT).relu_())
                hidden = _channels_first(bottlenecks[-1].view(B, H, W, -1))
                _write(features, rectified, end, F.conv2d(hidden, conv, padding=1))
        output = _channels_first(features)
        ctx.save_for_backward(output, rectified, *weights, *bottlenecks)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, rectified, *rest = ctx.saved_tensors
        count = len(rest) // 3
        weights, bottlenecks = rest[: 2 * count], rest[2 * count :]
        if torch.is_grad_enabled():
            return _differentiable_grads(features, weights, grad)
        B, H, W, width = rectified.shape
        growth = len(weights[1])
        grad = grad.permute(0, 2, 3, 1)
        grad_rectified = None  # of the features that later layers have read
        grad_weights: list[Tensor] = []
        with no_autocast(rectified):
            for index, (point, conv) in reversed(list(enumerate(_pairs(weights)))):
                end = width - (count - index) * growth
                grad_own = _grad_features(grad, grad_rectified, rectified, slice(end, end + growth))
                hidden = bottlenecks[index]
                grad_hidden, grad_conv, _ = torch.ops.aten.convolution_backward(
                    _channels_first(grad_own),
                    _channels_first(hidden.view(B, H, W, -1)),
                    conv,
                    None,
                    (1, 1),
                    (1, 1),
                    (1, 1),
                    False,
                    (0, 0),
                    1,
                    (True, True, False),
                )
                grad_hidden = grad_hidden.permute(0, 2, 3, 1).reshape(hidden.shape)
                grad_hidden = torch.ops.aten.threshold_backward(grad_hidden, hidden, 0)
                inputs = _rows(rectified)[:, :end]
                grad_weights[:0] = [(grad_hidden.mT @ inputs).view_as(point), grad_conv]
                if grad_rectified is None:
                    grad_rectified = (grad_hidden @ point.flatten(1)).view(B, H, W, end)
                else:
                    _rows(grad_rectified)[:, :end].addmm_(grad_hidden, point.flatten(1))
            grad_init = _grad_features(grad, grad_rectified, rectified, slice(0, width - count * growth))
        return _channels_first(grad_init), *grad_weights


def _differentiable_grads(features: Tensor, weights: Sequence[Tensor], grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients by operations that can be differentiated again.

    They are those of views: the derivative with respect to the weights themselves would go on through ``features``.
    """
    inputs = [tensor.view_as(tensor) for tensor in (features[:, : weights[0].shape[1]], *weights)]
    outputs, rectified = [inputs[0]], [F.relu(inputs[0])]
    for point, conv in _pairs(inputs[1:]):
        outputs.append(F.conv2d(F.relu(F.conv2d(torch.cat(rectified, dim=1), point)), conv, padding=1))
        rectified.append(F.relu(outputs[-1]))
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(torch.autograd.grad(torch.cat(outputs, dim=1), wanted, grad, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)


def _grad_features(grad: Tensor, grad_rectified: Tensor | None, rectified: Tensor, part: slice) -> Tensor:
    """The gradient of some channels: from the block's output, and through ReLU from the layers that have read them."""
    if grad_rectified is None:
        return grad[..., part]
    positive = (rectified[..., part] > 0).to(grad.dtype)
    return torch.addcmul(grad[..., part], grad_rectified[..., part], positive)


def _write(features: Tensor, rectified: Tensor, start: int, new: Tensor) -> None:
    """Put new features (B, c, H, W) behind the first ``start`` channels of both arrays (B, H, W, channels)."""
    part = slice(start, start + new.shape[1])
    features[..., part] = new.permute(0, 2, 3, 1)
    torch.clamp_min(features[..., part], 0, out=rectified[..., part])


def _pairs(weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """The weights of the 1x1 and the 3x3 convolution of each layer."""
    return list(zip(weights[::2], weights[1::2], strict=True))


def _channels_first(features: Tensor) -> Tensor:
    return features.permute(0, 3, 1, 2)


def _rows(features: Tensor) -> Tensor:
    return features.view(-1, features.shape[-1])


class Transition(nn.Sequential):
    """BatchNorm, 1x1 convolution and average pooling, from the modules ``norm``, ``conv`` and, if any, ``pool``.

    Pooling comes before the convolution, which commutes with it and then has a quarter of the pixels. In evaluation the
    BatchNorm is part of the convolution.

    Shape:
        (B, C, H, W) -> (B, out channels, H / 2, W / 2) with ``pool``, else (B, out channels, H, W).
    """

    def forward(self, x: Tensor) -> Tensor:
        if any(has_hooks(module) for module in self.modules()):
            return super().forward(x)
        norm, weight, bias = self.norm, self.conv.weight, None
        if norm.training:
            x = norm(x)
        else:
            weight, bias = _fold(norm, weight)
        if "pool" in self._modules:
            x = self.pool(x)
        return F.conv2d(x, weight, bias)


def _fold(norm: nn.BatchNorm2d, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of the 1x1 convolution that does what evaluated BatchNorm and a 1x1 convolution do."""
    dtype = at_least_float32(weight.dtype)
    with no_autocast(weight):
        scale = norm.weight.to(dtype) * torch.rsqrt(norm.running_var.to(dtype) + norm.eps)
        shift = norm.bias.to(dtype) - norm.running_mean.to(dtype) * scale
        folded = weight.to(dtype) * scale.view(-1, 1, 1)
        return folded.to(weight.dtype), (weight.to(dtype).flatten(1) @ shift).to(weight.dtype)
