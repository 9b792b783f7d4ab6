import copy
from collections import OrderedDict

import pytest
import torch
from timm.models.densenet import DenseBlock
from torch import nn

from vision import TokenEmbed
from vision.models.dense_block import ReluDenseBlock, Transition


def _blocks(layers=3, chans=8, dtype=torch.float64):
    """Our block and timm's, whose layers rectify their inputs themselves, with the same weights."""
    options = {"bn_size": 2, "growth_rate": 4, "dtype": dtype}
    ours = ReluDenseBlock(layers, chans, **options)
    timms = DenseBlock(layers, chans, norm_layer=lambda chans, **dd: nn.ReLU(), **options)
    timms.load_state_dict(ours.state_dict())
    return ours, timms


def _image(chans=8, dtype=torch.float64):
    return torch.randn(2, chans, 6, 5, dtype=dtype)


def _grads(block, image):
    image = image.clone().requires_grad_()
    output = block(image)
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return output, torch.autograd.grad((output * weight).sum(), [image, *block.parameters()])


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_output_and_gradients_are_those_of_timms_block(layers, layout):
    ours, timms = _blocks(layers)
    image = _image().contiguous(memory_format=layout)
    (output, grads), (expected, expected_grads) = _grads(ours, image), _grads(timms, image)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-12)


def _transition(pool):
    modules = OrderedDict(norm=nn.BatchNorm2d(6), conv=nn.Conv2d(6, 4, 1, bias=False))
    if pool:
        modules["pool"] = nn.AvgPool2d(2)
    transition = Transition(modules).double()
    with torch.no_grad():
        for tensor in (transition.norm.weight, transition.norm.bias, transition.norm.running_mean):
            tensor.normal_()
        transition.norm.running_var.uniform_(0.5, 2.0)
    return transition


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_transition_equals_its_modules_in_turn(pool, training):
    ours = _transition(pool).train(training)
    plain = nn.Sequential(OrderedDict(copy.deepcopy(ours).named_children())).train(training)
    image = torch.randn(3, 6, 4, 4, dtype=torch.float64)
    (output, grads), (expected, expected_grads) = _grads(ours, image), _grads(plain, image)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.norm.running_var, plain.norm.running_var, rtol=0, atol=1e-12)


def test_hooks_of_a_transition_are_called():
    transition, seen = _transition(pool=True).eval(), []
    image = torch.randn(3, 6, 4, 4, dtype=torch.float64)
    expected = transition(image)
    transition.conv.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    torch.testing.assert_close(transition(image), expected, rtol=0, atol=1e-12)
    assert seen == [(3, 4, 4, 4)]


@pytest.mark.parametrize("kind", ["DenseNet", "ResNet", "Inception", "Non-local"])
def test_images_of_either_layout_give_the_same_tokens(kind):
    embed = TokenEmbed({"type": kind, "embedding_dim": 8, "token_dim": 8}, img_size=32, patch_size=8).double().eval()
    image = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(
        embed(image.contiguous(memory_format=torch.channels_last)), embed(image), rtol=0, atol=1e-12
    )
