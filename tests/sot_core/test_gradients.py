"""First and second derivatives against finite differences, and that every parameter gets one."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from sot_core import cross_covariance, matrix_square_root, singular_value_power_norm
from tests.sot_core.cases import all_heads, all_words, head, total

pytestmark = pytest.mark.usefixtures("float64")

SHAPES = [(2, 5, 3), (2, 3, 5), (4, 4), (1, 2, 3, 4)]
SVPN = {
    "one": {},
    "one, alpha 0.3": {"alpha": 0.3},
    "one, 3 iterations": {"num_iters": 3},
    "one, published": {"residual_eps": 1e-5},
    "two": {"num_singular_values": 2, "num_iters": 2},
    "three, published": {"num_singular_values": 3, "num_iters": 3, "residual_eps": 1e-5},
    "all": {"num_singular_values": None, "num_iters": 3},
    "exact": {"exact": True},
    "exact, alpha 1": {"exact": True, "alpha": 1.0},
}


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


@pytest.mark.parametrize("options", SVPN.values(), ids=SVPN)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_svpn(shape, options):
    matrix, start = leaf(*shape), leaf(shape[-1])
    assert gradcheck(lambda matrix, start: singular_value_power_norm(matrix, start, **options), (matrix, start))


@pytest.mark.parametrize("options", [options for name, options in SVPN.items() if "exact" not in name], ids=str)
def test_svpn_twice(options):
    matrix, start = leaf(2, 4, 3), leaf(3)
    normalize = lambda matrix, start: singular_value_power_norm(matrix, start, **options)  # noqa: E731
    assert gradgradcheck(normalize, (matrix, start), fast_mode=True)


def test_svpn_with_one_input_that_needs_no_gradient():
    matrix, start = leaf(2, 4, 3), leaf(3)
    assert gradcheck(lambda matrix: singular_value_power_norm(matrix, start.detach()), matrix)
    assert gradcheck(lambda start: singular_value_power_norm(matrix.detach(), start), start)
    assert gradgradcheck(lambda start: singular_value_power_norm(matrix.detach(), start), start)


def test_exact_svpn_refuses_a_second_derivative():
    matrix = leaf(2, 4, 3)
    normalized = singular_value_power_norm(matrix, torch.ones(3), exact=True)
    (grad,) = torch.autograd.grad(normalized.square().sum(), matrix, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("num_iters", [1, 2, 5])
def test_matrix_square_root(num_iters):
    factor = torch.randn(2, 4, 6)
    symmetric = (factor @ factor.mT).requires_grad_()
    assert gradcheck(lambda matrix: matrix_square_root(matrix, num_iters), symmetric)
    other = (factor @ factor.mT + 0.1 * torch.randn(2, 4, 4)).requires_grad_()
    assert gradcheck(lambda matrix: matrix_square_root(matrix, num_iters), other)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("center", ["token", "sample", None])
@pytest.mark.parametrize("widths", [(3, 2), (2, 3)], ids=str)
def test_cross_covariance(widths, center, masked):
    mask = torch.tensor([[False, False, True, False], [True, True, True, True]]) if masked else None
    x, y = (leaf(2, 2, 4, width) for width in widths)
    assert gradcheck(lambda x, y: cross_covariance(x, y, mask, center), (x, y))


@pytest.mark.parametrize("training", [False, True])
@all_words
def test_pool(words, training):
    pool = head(words, embed_dim=6, q_dim=3, k_dim=2).train(training).pool
    mask = torch.zeros(2, 7, dtype=torch.bool)
    mask[1, 5:] = True
    names, values = zip(*pool.named_parameters(), strict=True) if list(pool.parameters()) else ((), ())

    def forward(tokens, *parameters):
        return torch.func.functional_call(pool, dict(zip(names, parameters, strict=True)), (tokens, mask))

    assert gradcheck(forward, (leaf(2, 7, 6), *values), fast_mode=True)
    assert gradcheck(lambda tokens: pool(tokens, mask), leaf(2, 7, 6), fast_mode=True)
    assert gradcheck(lambda tokens: pool(tokens), leaf(2, 7, 6), fast_mode=True)


@pytest.mark.parametrize("pooler", [None, 6])
@pytest.mark.parametrize("classes", [3, 0])
@all_heads
def test_every_parameter_gets_a_gradient(words, fusion, classes, pooler):
    module = head(words, fusion, num_classes=classes, cls_pooler_dim=pooler).train()
    tokens, mask = leaf(4, 9, 12), torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 4:] = True
    total(module(tokens, mask)).square().sum().backward()
    assert [name for name, parameter in module.named_parameters() if parameter.grad is None] == []
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@all_words
def test_eight_samples_can_be_learnt_by_heart(words):
    torch.set_default_dtype(torch.float32)
    module = head(words, num_classes=8)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02, foreach=True)
    tokens, labels = torch.randn(8, 9, 12), torch.arange(8)
    losses = []
    for _ in range(50):
        loss = torch.nn.functional.cross_entropy(module(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
