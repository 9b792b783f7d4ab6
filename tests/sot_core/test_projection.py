"""BatchNorm over the valid tokens only, with and without a mask."""

import pytest
import torch

from sot_core.projection import BatchNormReluProjection
from tests.sot_core.cases import assert_close, head


def projections():
    ours = BatchNormReluProjection(6, 4)
    with torch.no_grad():
        ours.bn.weight.uniform_(0.5, 1.5)
        ours.bn.bias.uniform_(-0.5, 0.5)
    other = BatchNormReluProjection(6, 4)
    other.load_state_dict(ours.state_dict())
    return ours.double(), other.double()


@pytest.mark.parametrize("training", [True, False])
def test_masked_tokens_do_not_count(training):
    """As if the valid tokens alone made up the batch, in outputs, gradients and running statistics."""
    masked, plain = (projection.train(training) for projection in projections())
    tokens = torch.randn(3, 5, 6, dtype=torch.float64)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[0, 2:], mask[2, 0] = True, True
    for _ in range(3):
        a, b = tokens.clone().requires_grad_(), tokens[~mask].unsqueeze(0).clone().requires_grad_()
        outputs, expected = masked(a, mask), plain(b)
        assert_close(outputs[~mask], expected[0], rtol=1e-12)
        assert (outputs[mask] == 0.0).all()
        outputs.square().sum().backward()
        expected.square().sum().backward()
        assert_close(a.grad[~mask], b.grad[0], rtol=1e-12)
        for x, y in zip(masked.parameters(), plain.parameters(), strict=True):
            assert_close(x.grad, y.grad, rtol=1e-12)
        for x, y in zip(masked.buffers(), plain.buffers(), strict=True):
            assert_close(x.double(), y.double(), rtol=1e-12)
    assert masked.bn.num_batches_tracked == (3 if training else 0)


@pytest.mark.parametrize("valid", [None, 1, 0])
def test_fewer_than_two_valid_tokens_use_the_running_statistics_and_leave_them(valid):
    mask = None if valid is None else torch.arange(3).unsqueeze(0) >= valid
    projection, _ = projections()
    projection(torch.randn(4, 9, 6, dtype=torch.float64))
    before = [buffer.clone() for buffer in projection.buffers()]
    tokens = torch.randn(1, 1 if mask is None else 3, 6, dtype=torch.float64, requires_grad=True)
    outputs = projection(tokens, mask)
    assert all(map(torch.equal, projection.buffers(), before))
    expected = projection.eval()(tokens, mask)
    assert_close(outputs, expected, rtol=1e-12)
    outputs.sum().backward()
    assert tokens.grad.isfinite().all()


def test_no_tokens_at_all():
    assert projections()[0](torch.randn(2, 0, 6, dtype=torch.float64)).shape == (2, 0, 4)


def test_a_batch_of_one_sentence_with_one_word_trains():
    module = head("mgcrp-batch_norm_relu").train()
    module(torch.randn(1, 2, 12)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())
