"""Contributions of tokens sum to the logits, whatever the head is made of; heads that do not split say so."""

import copy

import pytest
import torch

from sot_core import ClassificationHead, HeadConfig
from sot_core.build import POOLINGS
from sot_core.contributions import SPLITS
from tests.sot_core.cases import HEADS, SIZES, WORDS, assert_close, head

WITHOUT_SPLIT = {
    "mgcrp-epn": "ElementwisePowerNorm",
    "mgcrp-layer_norm": "RowLayerNorm",
    "mgcrp-published": "residual_eps=1e-05",
    "attention-mlp": "attention_mlp=True",
}
SPLITTING_WORDS = [words for words in WORDS if words not in WITHOUT_SPLIT and type(head(words).pool) in SPLITS]
SPLITTING = [(words, fusion) for words, fusion in HEADS if words in SPLITTING_WORDS or fusion == "cls"]
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


def trained(module, dtype=torch.float32):
    """Weights and statistics away from their initial values."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.rand(tensor.shape, generator=generator) + 0.2
            tensor.copy_(noise if "var" in name else tensor + 0.3 * (noise - 0.7))
    return module.to(dtype).eval()


def draw(length=14, valid=(10, 8, 14), dtype=torch.float32):
    tokens = torch.randn(len(valid), length, SIZES["embed_dim"], generator=torch.Generator().manual_seed(0))
    return tokens.to(dtype), torch.arange(length) >= torch.tensor(valid).unsqueeze(-1)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("words, fusion", SPLITTING)
def test_they_sum_to_the_logits(words, fusion, padded, dtype):
    module = trained(head(words, fusion), dtype)
    tokens, mask = draw(dtype=dtype)
    if padded:
        tokens[mask] = float("nan")
    else:
        mask = None
    parts = module.token_contributions(tokens, mask)
    assert parts.shape == (3, SIZES["num_classes"], 14)
    assert_close(parts.sum(dim=-1), module(tokens, mask).detach(), TOLERANCES[dtype])
    if padded:
        assert not parts.transpose(1, 2)[mask].any()


@pytest.mark.parametrize("words", SPLITTING_WORDS)
def test_with_batch_norm_before_the_classifiers_and_without_a_class_token(words):
    module = trained(head(words, "words", has_cls_token=False, feature_norm="batch_norm"))
    tokens, mask = draw()
    parts = module.token_contributions(tokens, mask)
    assert parts.shape == (3, SIZES["num_classes"], 1 + tokens.shape[1])
    assert_close(parts.sum(dim=-1), module(tokens, mask).detach())
    assert not parts[..., 1:].transpose(1, 2)[mask].any()


@pytest.mark.parametrize("num_classes", [1, 300])
@pytest.mark.parametrize("words", ["mgcrp-svpn", "mgcrp-svpn_exact", "gcp", "attention"])
def test_regression_many_classes_and_a_pooler(words, num_classes, monkeypatch):
    monkeypatch.setattr("sot_core.covariance_split.CHUNK_SIZE", 500)  # several parts
    module = trained(head(words, num_classes=num_classes, cls_pooler_dim=6, drop_rate=0.5))
    tokens, mask = draw()
    assert_close(module.token_contributions(tokens, mask).sum(dim=-1), module(tokens, mask).detach())


@pytest.mark.parametrize("words", ["mgcrp-svpn", "mgcrp-two_values", "gcp", "moment", "gem", "attention"])
def test_under_autocast_they_are_those_of_full_precision(words):
    module = trained(head(words))
    tokens, mask = draw()
    expected = module.token_contributions(tokens, mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(module.token_contributions(tokens, mask), expected)
        rounded = module.token_contributions(tokens.bfloat16(), mask)
    assert rounded.dtype == torch.float32
    assert_close(rounded.sum(dim=-1), module(tokens.bfloat16().float(), mask).detach())


@pytest.mark.parametrize("words", SPLITTING_WORDS)
def test_few_words(words):
    module = trained(head(words))
    for length in (1, 2, 4):
        tokens, mask = draw(length, valid=(1, min(2, length), length))
        parts = module.token_contributions(tokens, mask)
        assert parts.shape == (3, SIZES["num_classes"], length)
        precise = copy.deepcopy(module).double()  # float32 is imprecise where singular values are 0
        assert_close(parts.sum(dim=-1).double(), precise(tokens.double(), mask).detach())


@pytest.mark.parametrize("words", SPLITTING_WORDS)
def test_an_empty_batch(words):
    parts = trained(head(words, "sum_fc")).token_contributions(draw()[0][:0])
    assert parts.shape == (0, SIZES["num_classes"], 14)


def test_a_part_of_svpn_is_the_bilinear_form_of_its_token():
    module = trained(head("mgcrp-svpn", "words"))
    tokens, _ = draw(valid=(14,))
    pool, word = module.pool, tokens[0, 1:]
    x, y = pool.proj(word[None])[0].split([10, 8], dim=-1)
    x, y = ((part - part.mean(dim=0)).unflatten(-1, (2, -1)) for part in (x, y))
    matrix = torch.einsum("nhq,nhk->hqk", x, y) / len(word)
    scale = (pool.norm(matrix[None])[0] / matrix)[:, 0, 0]
    weight = module.word_fc.weight.unflatten(-1, (2, 5, 4))
    expected = torch.einsum("h,nhq,chqk,nhk->cn", scale, x, weight, y) / len(word)
    assert_close(module.token_contributions(tokens)[0, :, 1:], expected.detach())


def test_a_token_that_holds_the_maximum_has_all_of_it_and_equal_ones_share():
    module = ClassificationHead(HeadConfig(embed_dim=2, num_classes=1, pooling="max", fusion="words")).eval()
    torch.nn.init.ones_(module.word_fc.weight)
    tokens = torch.tensor([[[9.0, 9.0], [1.0, 4.0], [3.0, 4.0]]])
    assert module.token_contributions(tokens)[0, 0, 1:].tolist() == [2.0, 5.0]


@pytest.mark.parametrize("words", WITHOUT_SPLIT)
@pytest.mark.parametrize("fusion", ["sum_fc", "aggre_all"])
def test_what_does_not_split_is_named(words, fusion):
    with pytest.raises(ValueError, match=WITHOUT_SPLIT[words]):
        head(words, fusion).eval().token_contributions(draw()[0])


def test_a_head_in_training_or_without_classes_is_refused():
    with pytest.raises(ValueError, match=r"in training mode, where dropout is on.*eval"):
        head().token_contributions(draw()[0])
    with pytest.raises(ValueError, match="without classes"):
        head(num_classes=0).eval().token_contributions(draw()[0])


def test_every_pooling_has_a_rule():
    assert {type(head(pooling=name, num_queries=3).pool) for name in POOLINGS} == set(SPLITS)


def test_a_pooling_without_a_rule_is_named():
    module = head("gap").eval()
    module.pool.__class__ = type("MeanMagnitudePool", (type(module.pool),), {})
    with pytest.raises(ValueError, match="MeanMagnitudePool has no exact split"):
        module.token_contributions(draw()[0])
