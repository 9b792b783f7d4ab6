"""The heads against the definition, written out sample by sample and head by head (float32, 1e-5)."""

import itertools

import pytest
import torch
from torch.nn.functional import linear

from sot_core import singular_value_power_norm
from tests.sot_core.cases import WORDS, all_words, assert_close, head, run


def unit(vector):
    return vector / vector.norm()


def power_norm(matrix, start, alpha, num_values, num_iters, eps):
    residual, result, rank = matrix, torch.zeros_like(matrix), num_values or min(matrix.shape)
    for _ in range(rank):
        v = start
        for _ in range(num_iters):
            u = unit(residual @ v)
            v = unit(residual.T @ u)
        s = u @ residual @ v
        result = result + s**alpha * torch.outer(u, v)
        residual = residual - s * torch.outer(u, v)
    return result if num_values is None else result + residual / (s ** (1.0 - alpha) + eps)


def exact_power_norm(matrix, alpha):
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u @ torch.diag(s**alpha) @ vh


def normalize(matrix, config, norm):
    if config.normalization == "svpn":
        options = (config.alpha, config.num_singular_values, config.num_iters, config.residual_eps)
        return power_norm(matrix, norm.start_vector, *options)
    if config.normalization == "svpn_exact":
        return exact_power_norm(matrix, config.alpha)
    if config.normalization == "epn":
        root = matrix.sign() * (matrix.abs() + 1e-8).sqrt()
        return torch.stack([unit(root[:, j]) for j in range(root.shape[1])], dim=1)
    if config.normalization == "layer_norm":
        rows = [(row - row.mean()) / (row.var(unbiased=False) + 1e-5).sqrt() for row in matrix]
        return torch.stack(rows) * norm.weight + norm.bias
    return matrix * {"scale": 4**-0.5, "none": 1.0}.get(config.normalization, getattr(norm, "factor", None))


def centred(values, center):
    if center == "token":
        return values - values.mean(dim=0)
    return values - values.mean() if center == "sample" else values


def project(pool, tokens, config):
    """The projections of one sample's valid tokens, in evaluation mode."""
    if config.projection == "linear":
        return linear(tokens, pool.proj.weight, pool.proj.bias)
    bn = pool.proj.bn
    values = (linear(tokens, pool.proj.linear.weight) - bn.running_mean) / (bn.running_var + bn.eps).sqrt()
    return (values * bn.weight + bn.bias).clamp_min(0.0)


FIRST_ORDER = {  # of the poolings without a projection: one sample's valid tokens (N, D) -> (D,)
    "gap": lambda tokens: tokens.mean(dim=0),
    "mean_std": lambda tokens: torch.cat((tokens.mean(dim=0), tokens.var(dim=0, unbiased=False).sqrt())),
    "max": lambda tokens: tokens.max(dim=0).values,
}


def generalized_mean(pool, tokens):
    return tokens.clamp_min(1e-6).pow(pool.power).mean(dim=0) ** (1.0 / pool.power)


def attention(pool, tokens):
    width = tokens.shape[1] // pool.num_heads
    query, keys, values = pool.query_proj(pool.query), pool.key_proj(tokens), pool.value_proj(tokens)
    averages = []
    for part in (slice(h * width, (h + 1) * width) for h in range(pool.num_heads)):
        weights = (keys[:, part] @ query[part] / width**0.5).exp()
        averages.append(weights @ values[:, part] / weights.sum())
    pooled = pool.out_proj(torch.cat(averages))
    return pooled if pool.mlp is None else pooled + pool.mlp(pooled)


def efficient_probing(pool, tokens):
    parts = []
    for query, values in zip(pool.queries, pool.values, strict=True):
        weights = (tokens @ query / tokens.shape[1] ** 0.5).exp()
        parts.append(weights @ (tokens @ values.T) / weights.sum())
    return torch.cat(parts)


LEARNED = {"gem": generalized_mean, "attention": attention, "efficient": efficient_probing}


def standardized(values, norm):
    """Layer normalisation of each token, if there is one."""
    if norm is None:
        return values
    rows = [(row - row.mean()) / (row.var(unbiased=False) + 1e-5).sqrt() for row in values]
    return torch.stack(rows) * norm.weight + norm.bias


def pool_one(pool, tokens, config):
    if config.pooling in FIRST_ORDER:
        return FIRST_ORDER[config.pooling](tokens)
    if config.pooling in LEARNED:
        return LEARNED[config.pooling](pool, tokens)
    values = project(pool, tokens, config)
    if config.pooling == "moment":
        heads = [standardized(part, pool.feature_norm) for part in values.split(config.q_dim, dim=1)]
        return unit(torch.cat([(x.T @ y / len(tokens)).flatten() for x, y in itertools.pairwise(heads)]))
    if config.pooling in ("gcp", "dropcov"):
        values = centred(standardized(values, pool.feature_norm), config.center)
        covariance = values.T @ values / len(values)
        if config.pooling == "dropcov":
            return torch.cat([covariance[i, i:] for i in range(len(covariance))])
        trace, eye = covariance.trace(), torch.eye(len(covariance))
        y, z = covariance / trace, eye
        for _ in range(config.gcp_iters):
            step = (3.0 * eye - z @ y) / 2.0
            y, z = y @ step, step @ z
        root = y * trace.sqrt()
        return torch.cat([root[i, i:] for i in range(len(root))])
    q, k, heads, matrices = config.q_dim, config.k_dim or config.q_dim, config.num_heads, []
    for h in range(heads):
        x = centred(standardized(values[:, h * q : (h + 1) * q], pool.x_norm), config.center)
        y = centred(standardized(values[:, heads * q + h * k : heads * q + (h + 1) * k], pool.y_norm), config.center)
        matrices.append(normalize(x.T @ y / len(tokens), config, pool.norm).flatten())
    return torch.cat(matrices)


def slow(module):
    """The logits of a ``sum_fc`` head, one sample after the other."""

    def forward(tokens, padding_mask):
        rows = []
        for sample, padding in zip(tokens, padding_mask, strict=True):
            pooled = pool_one(module.pool, sample[1:][~padding[1:]], module.config)
            cls_logits = linear(sample[0], module.cls_fc.weight, module.cls_fc.bias)
            rows.append(cls_logits + linear(pooled, module.word_fc.weight, module.word_fc.bias))
        return torch.stack(rows)

    return forward


@all_words
def test_outputs_and_gradients(words):
    module = head(words).eval()
    tokens, mask = torch.randn(4, 14, 12), torch.zeros(4, 14, dtype=torch.bool)
    mask[1, 10:], mask[2, [3, 5, 6]] = True, True
    outputs, grad, grads = run(module, tokens, mask)
    reference = torch.nn.Module()
    reference.head, reference.forward = module, slow(module)
    expected, expected_grad, expected_grads = run(reference, tokens, mask)
    rtol = 1e-4 if WORDS[words].get("num_singular_values", 1) != 1 or "epn" in words else 1e-5
    assert_close(outputs, expected, rtol)
    assert_close(grad, expected_grad, rtol)
    for name, value in grads.items():
        assert_close(value, expected_grads[f"head.{name}"], rtol)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)], ids=str)
def test_more_iterations_come_closer_to_the_exact_norm(shape):
    u, _, vh = torch.linalg.svd(torch.randn(3, *shape, dtype=torch.float64), full_matrices=False)
    s = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5], dtype=torch.float64)[: min(shape)]
    matrix, start = (u * s) @ vh, torch.ones(shape[1], dtype=torch.float64)
    exact = singular_value_power_norm(matrix, start, exact=True)
    assert_close(exact, (u * s.sqrt()) @ vh, rtol=1e-12)
    assert_close(singular_value_power_norm(matrix, start, 0.5, None, 30), exact, rtol=1e-6)
    normalized = [singular_value_power_norm(matrix, start, 0.5, 1, num_iters) for num_iters in (1, 2, 30)]
    leading = [(matrix / value)[:, 0, 0] ** 2 for value in normalized]
    assert (leading[0] < leading[1]).all()
    assert (leading[1] < 8.0).all()  # power iteration comes from below
    assert_close(leading[2], torch.full_like(leading[2], 8.0), rtol=1e-9)


def test_of_a_matrix_of_rank_one_a_single_iteration_is_exact():
    matrix = torch.randn(3, 6, 1, dtype=torch.float64) @ torch.randn(3, 1, 4, dtype=torch.float64)
    start = torch.randn(4, dtype=torch.float64)
    exact = singular_value_power_norm(matrix, start, exact=True)
    assert_close(singular_value_power_norm(matrix, start), exact, rtol=1e-6)
