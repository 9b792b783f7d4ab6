"""The fused Adam against fairseq's own loop."""

import copy
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.adam import Adam, FairseqAdam
from omegaconf import OmegaConf
from torch import nn

import sot_fairseq  # noqa: F401  the patch
from sot_fairseq.fairseq_patches.fused_adam import FusedAdam

BETAS = (0.9, 0.98)


def config(**changes):
    return SimpleNamespace(
        **{"lr": [0.01], "adam_betas": OmegaConf.create(BETAS), "adam_eps": 1e-3, "weight_decay": 0.1}
        | {"use_old_adam": False, "fp16_adam_stats": False, "tpu": False}
        | changes
    )


def weights(dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in ((4, 3), (5,), (1, 2, 2))]


def take_step(optimizer, number):
    generator = torch.Generator().manual_seed(number)
    for index, weight in enumerate(optimizer.param_groups[0]["params"]):
        weight.grad = None
        if index != 1 or number % 3:  # one weight has no gradient every third step
            weight.grad = torch.randn(weight.shape, generator=generator).to(weight.dtype)
    optimizer.step()


def test_adam_is_fused_unless_the_old_one_is_asked_for():
    assert type(FairseqAdam(config(), weights()).optimizer) is FusedAdam
    assert type(FairseqAdam(config(use_old_adam=True), weights()).optimizer) is Adam
    groups = [{"params": weights(), "lr": 0.5}, {"params": weights()}]
    assert [group["lr"] for group in FairseqAdam(config(), groups).optimizer.param_groups] == [0.5, 0.01]


def test_twenty_steps_are_those_of_the_loop():
    fused, loop = (cls(weights(), 0.01, BETAS, eps=1e-3, weight_decay=0.1) for cls in (FusedAdam, Adam))
    for number in range(20):
        for optimizer in (fused, loop):
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
            take_step(optimizer, number)
    pairs = zip(fused.param_groups[0]["params"], loop.param_groups[0]["params"], strict=True)
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
        assert fused.state[actual]["step"] == loop.state[expected]["step"] > 10


@pytest.mark.parametrize("first, second", [(FusedAdam, Adam), (Adam, FusedAdam)])
def test_one_continues_from_the_state_of_the_other(first, second):
    straight = second(weights(), 0.01, BETAS)
    for number in range(6):
        take_step(straight, number)
    before = first(weights(), 0.01, BETAS)
    for number in range(3):
        take_step(before, number)
    after = second([nn.Parameter(weight.detach().clone()) for weight in before.param_groups[0]["params"]], 0.01, BETAS)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    for number in range(3, 6):
        take_step(after, number)
    for actual, expected in zip(after.param_groups[0]["params"], straight.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_half_precision_is_left_to_the_loop():
    fused, loop = (cls(weights(torch.bfloat16), 0.01, BETAS) for cls in (FusedAdam, Adam))
    for number in range(3):
        take_step(fused, number)
        take_step(loop, number)
    for actual, expected in zip(fused.param_groups[0]["params"], loop.param_groups[0]["params"], strict=True):
        assert torch.equal(actual, expected)
        assert fused.state[actual]["exp_avg"].dtype == torch.float32


def test_sparse_gradients_are_refused_as_by_the_loop():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = FusedAdam(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optimizer.step()


def test_a_step_without_any_gradient():
    optimizer = FusedAdam(weights())
    assert optimizer.step(lambda: 3.0) == 3.0
    assert not optimizer.state
