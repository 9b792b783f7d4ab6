"""What must not change a head's answer: padding, the order of the words, the rest of the batch, the scale."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sot_core import singular_value_power_norm
from tests.sot_core.cases import all_heads, all_words, assert_close, examples, head, run

pytestmark = pytest.mark.usefixtures("float64")

GARBAGE = torch.tensor([0.0, float("nan"), float("inf"), -float("inf"), 1e30])


def padded(tokens, mask, count):
    """More tokens, garbage under the mask."""
    B, _, D = tokens.shape
    garbage = GARBAGE[torch.randint(len(GARBAGE), (B, count, D))]
    return torch.cat((tokens, garbage), dim=1), torch.cat((mask, torch.ones(B, count, dtype=torch.bool)), dim=1)


def short_sentences():
    tokens, mask = torch.randn(4, 10, 12), torch.zeros(4, 10, dtype=torch.bool)
    mask[1, 7:], mask[2, [2, 5]] = True, True  # at the end and in the middle
    return tokens, mask


@pytest.mark.parametrize("training", [False, True])
@all_heads
def test_padding_changes_nothing(words, fusion, training):
    module = head(words, fusion).train(training)
    tokens, mask = short_sentences()
    expected = run(module, tokens, mask)
    for count in (1, 10, 100):
        outputs, grad, grads = run(module, *padded(tokens, mask, count))
        assert_close(outputs, expected[0])
        assert_close(grad[:, :10], expected[1])
        assert (grad[:, 10:] == 0.0).all()
        for name in grads:
            assert_close(grads[name], expected[2][name])


@all_words
def test_a_mask_without_padding_is_no_mask(words):
    module = head(words)
    tokens = torch.randn(3, 8, 12)
    masked = run(module, tokens, torch.zeros(3, 8, dtype=torch.bool))
    for actual, expected in zip(masked[:2], run(module, tokens), strict=False):
        assert_close(actual, expected)


@all_words
def test_what_lies_under_the_mask_is_not_looked_at(words):
    module = head(words)
    tokens, mask = short_sentences()
    expected = run(module, tokens, mask)
    spoilt = tokens.masked_fill(mask.unsqueeze(-1), float("nan"))
    outputs, grad, grads = run(module, spoilt, mask)
    assert torch.equal(outputs, expected[0])
    assert torch.equal(grad, expected[1])
    assert all(torch.equal(grads[name], expected[2][name]) for name in grads)


@all_words
@examples
@given(count=st.integers(1, 100), length=st.integers(2, 20), seed=st.integers(0, 99))
def test_a_sentence_alone_and_in_a_padded_batch(words, count, length, seed):
    torch.manual_seed(seed)
    module = head(words).eval()
    tokens = torch.randn(1, length, 12)
    alone = module(tokens)
    longer, mask = padded(tokens, torch.zeros(1, length, dtype=torch.bool), count)
    other = torch.randn(1, length + count, 12)
    batch = module(torch.cat((longer, other)), torch.cat((mask, torch.zeros_like(mask))))
    assert_close(batch[:1], alone, rtol=1e-5)


@all_heads
def test_the_order_of_the_words_does_not_matter(words, fusion):
    module = head(words, fusion)
    tokens, mask = short_sentences()
    order = torch.cat((torch.zeros(1, dtype=torch.long), 1 + torch.randperm(9)))
    outputs, grad, grads = run(module, tokens, mask)
    shuffled = run(module, tokens[:, order], mask[:, order])
    assert_close(shuffled[0], outputs)
    assert_close(shuffled[1], grad[:, order])
    for name in grads:
        assert_close(shuffled[2][name], grads[name])


@all_heads
def test_samples_of_a_batch_do_not_meet(words, fusion):
    module = head(words, fusion).eval()
    tokens, mask = short_sentences()
    outputs, grad, _ = run(module, tokens, mask)
    spoilt = tokens.clone()
    spoilt[2, 3, 4] = float("nan")
    with_nan, grad_with_nan, _ = run(module, spoilt, mask)
    for i in (0, 1, 3):
        alone, grad_alone, _ = run(module, tokens[i : i + 1], mask[i : i + 1])
        assert_close(alone[0], outputs[i])
        assert_close(grad_alone[0], grad[i])
        assert torch.equal(with_nan[i], outputs[i])
        assert torch.equal(grad_with_nan[i], grad[i])
    if fusion != "cls":
        assert with_nan[2].isnan().all()


@pytest.mark.parametrize("options", [{}, {"num_iters": 3}, {"num_singular_values": 2, "num_iters": 2}, {"exact": True}])
@examples
@given(exponent=st.floats(-4.0, 4.0), alpha=st.floats(0.1, 1.0), sign=st.sampled_from((1.0, -1.0)))
def test_svpn_scales_with_the_power(options, exponent, alpha, sign):
    torch.manual_seed(1)
    matrix, start, c = torch.randn(3, 5, 4), torch.randn(4), 10.0**exponent
    expected = sign * c**alpha * singular_value_power_norm(matrix, start, alpha, **options)
    assert_close(singular_value_power_norm(sign * c * matrix, start, alpha, **options), expected)


@examples
@given(exponent=st.floats(-4.0, 4.0), alpha=st.floats(0.1, 1.0))
def test_mgcrp_scales_with_twice_the_power(exponent, alpha):
    torch.manual_seed(2)
    pool, tokens, c = head(alpha=alpha).pool, 3.0 * torch.randn(2, 9, 12), 10.0**exponent
    assert_close(pool(c * tokens), c ** (2 * alpha) * pool(tokens))


@examples
@given(exponent=st.floats(-6.0, 6.0), options=st.sampled_from(({}, {"num_singular_values": 2, "num_iters": 2})))
def test_the_length_of_the_start_vector_does_not_matter(exponent, options):
    matrix, start = torch.randn(3, 5, 4), torch.randn(4)
    expected = singular_value_power_norm(matrix, start, **options)
    assert_close(singular_value_power_norm(matrix, start * 10.0**exponent, **options), expected)


def test_an_offset_common_to_all_tokens_is_centred_away():
    pool, tokens = head().pool, torch.randn(2, 9, 12)
    assert_close(pool(tokens + torch.randn(12)), pool(tokens))
    uncentred = head(center=None).pool
    assert (uncentred(tokens + torch.randn(12)) - uncentred(tokens)).abs().max() > 0.01
