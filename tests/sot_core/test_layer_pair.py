"""Heads that read two layers of an encoder."""

from __future__ import annotations

import pytest
import torch

from sot_core import ClassificationHead, HeadConfig, MultiheadCrossCovariancePool
from sot_core.layer_pair import join_layers

EMBED_DIM, BATCH, TOKENS = 8, 3, 6


def layers_and_mask() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, BATCH, TOKENS, EMBED_DIM, generator=generator, dtype=torch.float64)
    mask = torch.arange(TOKENS) >= torch.tensor([TOKENS, 4, 2]).unsqueeze(1)
    return first, second, mask


def head_of_two_layers(**settings: object) -> ClassificationHead:
    torch.manual_seed(0)
    config = HeadConfig(EMBED_DIM, 3, num_heads=2, q_dim=4, k_dim=3, two_layers=True, **settings)
    return ClassificationHead(config).double().eval()


def test_words_of_one_layer_and_the_class_token_of_another():
    first, second, _ = layers_and_mask()
    joined = join_layers("words_cls", first, second)
    assert torch.equal(joined[:, 0], second[:, 0])
    assert torch.equal(joined[:, 1:], first[:, 1:])


def test_an_unknown_pair_is_refused():
    first, second, _ = layers_and_mask()
    with pytest.raises(ValueError, match=r"Unknown layer_pair 'y_x', expected one of \['words_cls', 'x_y'\]"):
        join_layers("y_x", first, second)


@pytest.mark.parametrize("proj_bias", [False, True])
def test_x_comes_from_the_first_layer_and_y_from_the_second(proj_bias):
    first, second, mask = layers_and_mask()
    pool = MultiheadCrossCovariancePool(EMBED_DIM, 2, 4, 3, proj_bias=proj_bias, two_layers=True).double()
    pooled = pool(join_layers("x_y", first, second), mask)
    weight, bias = pool.proj.weight, pool.proj.bias
    for sample, length in enumerate((~mask).sum(dim=1).tolist()):
        x = first[sample, :length] @ weight[:8].T + (0.0 if bias is None else bias[:8])
        y = second[sample, :length] @ weight[8:].T + (0.0 if bias is None else bias[8:])
        x, y = x - x.mean(dim=0), y - y.mean(dim=0)
        matrices = [x[:, 4 * h : 4 * h + 4].T @ y[:, 3 * h : 3 * h + 3] / length for h in range(2)]
        torch.testing.assert_close(pooled[sample], torch.stack(matrices).flatten())


def test_one_layer_twice_is_the_head_of_one_layer(subtests):
    first, _, mask = layers_and_mask()
    for fusion in ("sum_fc", "concat", "aggre_all", "sum_loss", "words"):
        with subtests.test(fusion):
            head = head_of_two_layers(fusion=fusion, head_norm="layer_norm")
            one = ClassificationHead(head.config.replace(two_layers=False)).double().eval()
            one.load_state_dict(head.state_dict())
            torch.testing.assert_close(head(join_layers("x_y", first, first), mask), one(first, mask))


def test_the_class_token_is_that_of_the_second_layer():
    first, second, mask = layers_and_mask()
    head = head_of_two_layers(cls_pooler_dim=5)
    expected = head.out_proj(head.dense(second[:, 0]).tanh())
    torch.testing.assert_close(head.contributions(join_layers("x_y", first, second), mask).cls, expected)


@pytest.mark.parametrize("normalization", ["svpn", "svpn_exact", "none"])
def test_contributions_of_the_tokens_sum_up(normalization):
    first, second, mask = layers_and_mask()
    head, tokens = head_of_two_layers(normalization=normalization), join_layers("x_y", first, second)
    parts = head.token_contributions(tokens, mask)
    assert parts.shape == (BATCH, 3, TOKENS)
    torch.testing.assert_close(parts.sum(dim=-1), head(tokens, mask))


def test_padding_has_no_influence():
    first, second, mask = layers_and_mask()
    tokens = join_layers("x_y", first, second)
    other = tokens.masked_fill(mask.unsqueeze(-1), float("nan"))
    head = head_of_two_layers()
    torch.testing.assert_close(head(other, mask), head(tokens, mask))


def test_both_layers_and_all_weights_get_the_gradient_of_autograd():
    first, second, mask = layers_and_mask()
    head = head_of_two_layers(normalization="none", fusion="words")
    tokens = join_layers("x_y", first, second).requires_grad_()
    parameters = (tokens, *head.parameters())
    found = torch.autograd.grad(head(tokens, mask).sum(), parameters)
    words = tokens[:, 1:].masked_fill(mask[:, 1:, None], 0.0)
    weight = head.pool.proj.weight
    x, y = words[..., :EMBED_DIM] @ weight[:8].T, words[..., EMBED_DIM:] @ weight[8:].T
    valid = (~mask[:, 1:]).double().unsqueeze(-1)
    centred = [part - (part * valid).sum(dim=1, keepdim=True) / valid.sum(dim=1, keepdim=True) for part in (x, y)]
    x, y = (part * valid for part in centred)
    q = torch.einsum("bnhq,bnhk->bhqk", x.unflatten(2, (2, 4)), y.unflatten(2, (2, 3)))
    q = q / valid.sum(dim=1)[..., None, None]
    expected = torch.autograd.grad(head.word_fc(q.flatten(1)).sum(), parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"pooling": "gap"}, "two_layers needs pooling='mgcrp' and projection='linear', got 'gap' and 'linear'"),
        ({"projection": "batch_norm_relu"}, "two_layers needs pooling='mgcrp' and projection='linear'"),
        ({"fusion": "cls"}, "two_layers needs word tokens"),
        ({"two_layers": 1}, "two_layers must be True or False, got 1"),
    ],
)
def test_settings_that_do_not_fit(settings, message):
    with pytest.raises(ValueError, match=message):
        HeadConfig(**{"embed_dim": EMBED_DIM, "num_classes": 3, "two_layers": True, **settings})


def test_tokens_of_one_layer_are_refused():
    first, _, mask = layers_and_mask()
    with pytest.raises(ValueError, match=r"tokens must be \(B, N, 16\), got \(3, 6, 8\)"):
        head_of_two_layers()(first, mask)


def test_compiled_as_in_eager_mode():
    first, second, mask = layers_and_mask()
    head, tokens = head_of_two_layers(), join_layers("x_y", first, second)
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens, mask), head(tokens, mask))
