"""The head as a module: what it returns in each mode, its parameters, copies and contributions."""

import copy
import pickle

import pytest
import torch
from torch.nn.functional import linear

from sot_core import ClassificationHead, HeadConfig, build, projection, published_form, published_heads
from sot_core.build import FUSIONS
from tests.sot_core.cases import SIZES, WORDS, all_heads, all_words, assert_close, head, total

TOKENS = torch.randn(4, 9, 12, generator=torch.Generator().manual_seed(3))
POOLED = {words: head(words).pool.out_dim for words in WORDS}
splittable = pytest.mark.parametrize("fusion", [name for name, fusion in FUSIONS.items() if not fusion.pools_cls])


@all_words
def test_width_of_the_pooled_words(words):
    options = {**SIZES, "pooling": "mgcrp", **WORDS[words]}
    heads, q, k = options["num_heads"], options["q_dim"], options["k_dim"]
    triangle = q * (q + 1) // 2
    widths = {"mgcrp": heads * q * k, "gcp": triangle, "dropcov": triangle, "moment": (heads - 1) * q**2}
    width = {**widths, "mean_std": 24}.get(options["pooling"], 12)
    assert POOLED[words] == width == head(words).pool(TOKENS).shape[1]


@all_heads
def test_logits(words, fusion):
    for training in (True, False):
        outputs = head(words, fusion).train(training)(TOKENS)
        assert isinstance(outputs, tuple) == (fusion == "sum_loss" and training)
        for logits in outputs if isinstance(outputs, tuple) else (outputs,):
            assert logits.shape == (4, 3)


@all_heads
def test_without_classes_the_head_returns_the_features(words, fusion):
    module = head(words, fusion, num_classes=0)
    features = module(TOKENS)
    width = {"cls": 12, "concat": 12 + POOLED[words]}.get(fusion, POOLED[words])
    assert features.shape == (4, width)
    assert module.num_features == width == head(words, fusion).num_features
    if fusion == "concat":
        assert torch.equal(features[:, :12], TOKENS[:, 0])
    elif fusion == "cls":
        assert torch.equal(features, TOKENS[:, 0])
    else:
        assert torch.equal(features, module.pool(TOKENS if fusion == "aggre_all" else TOKENS[:, 1:]))


def test_parameter_names():
    names = {
        "sum_fc": {"cls_fc.weight", "cls_fc.bias", "word_fc.weight", "word_fc.bias"},
        "sum_loss": {"cls_fc.weight", "cls_fc.bias", "word_fc.weight", "word_fc.bias"},
        "concat": {"word_fc.weight", "word_fc.bias"},
        "aggre_all": {"word_fc.weight", "word_fc.bias"},
        "words": {"word_fc.weight", "word_fc.bias"},
        "cls": {"cls_fc.weight", "cls_fc.bias"},
    }
    pool = {"pool.proj.weight", "pool.norm.start_vector"}
    for fusion, layers in names.items():
        assert set(head(fusion=fusion).state_dict()) == layers | (pool if fusion != "cls" else set())


def test_parameter_names_with_the_pooler_of_text_models():
    dense, classifier = {"dense.weight", "dense.bias"}, {"out_proj.weight", "out_proj.bias"}
    pool, words = {"pool.proj.weight", "pool.norm.start_vector"}, {"word_fc.weight", "word_fc.bias"}
    names = {
        "sum_fc": dense | classifier | pool | words,
        "concat": dense | classifier | pool,
        "cls": dense | classifier,
        "words": pool | words,
    }
    for fusion, expected in names.items():
        assert set(head(fusion=fusion, cls_pooler_dim=7).state_dict()) == expected


@pytest.mark.parametrize("activation", ["tanh", "gelu", "relu", "none"])
def test_pooler_of_the_class_token(activation):
    module = head(fusion="cls", cls_pooler_dim=7, cls_pooler_activation=activation)
    hidden = linear(TOKENS[:, 0], module.dense.weight, module.dense.bias)
    hidden = {"none": lambda x: x, "gelu": torch.nn.functional.gelu}.get(activation, getattr(torch, activation, None))(
        hidden
    )
    assert_close(module(TOKENS), linear(hidden, module.out_proj.weight, module.out_proj.bias))


def test_dropout():
    words = head(drop_rate=0.9)
    assert not torch.equal(words(TOKENS), words(TOKENS))
    words.eval()
    assert torch.equal(words(TOKENS), words(TOKENS))
    kept = head(fusion="words", num_classes=0, drop_rate=0.75, k_dim=30, q_dim=30)(TOKENS)
    assert (kept == 0.0).float().mean().item() == pytest.approx(0.75, abs=0.05)
    pooler = head(fusion="cls", cls_pooler_dim=7, cls_pooler_drop_rate=0.9)
    assert not torch.equal(pooler(TOKENS), pooler(TOKENS))


def test_sum_loss_returns_the_pair_in_training_and_their_sum_after():
    module = head(fusion="sum_loss")
    cls, words = module(TOKENS)
    assert torch.equal(cls, module.cls_fc(TOKENS[:, 0]))
    assert torch.equal(module.eval()(TOKENS), cls + words)


def test_aggregate_all_pools_the_class_token_too():
    module = head(fusion="aggre_all")
    assert_close(module(TOKENS), module.word_fc(module.pool(TOKENS)))
    assert not torch.equal(module.pool(TOKENS), module.pool(TOKENS[:, 1:]))


def test_words_alone_do_not_look_at_the_class_token():
    module, other = head(fusion="words"), TOKENS.clone()
    other[:, 0] = float("nan")
    logits = module(other)
    logits.sum().backward()
    assert torch.equal(logits, module(TOKENS))
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_without_a_class_token_every_token_is_a_word():
    module, with_cls = (head(fusion="words", has_cls_token=has) for has in (False, True))
    with_cls.load_state_dict(module.state_dict())
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 4:] = True
    assert_close(module(TOKENS[:, 1:], mask[:, 1:]), with_cls(TOKENS, mask))


@pytest.mark.parametrize("pooler", [None, 7])
@splittable
@all_words
def test_contributions_sum_to_the_logits(words, fusion, pooler):
    module = head(words, fusion, cls_pooler_dim=pooler, drop_rate=0.5, cls_pooler_drop_rate=0.5).eval()
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 4:] = True
    for padding in (None, mask):
        parts, logits = module.contributions(TOKENS, padding), module(TOKENS, padding)
        if fusion == "concat":
            assert_close(parts.cls + parts.word, logits)
        else:
            assert torch.equal(parts.cls + parts.word, logits)
        assert (parts.cls == 0.0).all() == (fusion == "words")
        assert (parts.word == 0.0).all() == (fusion == "cls")


@splittable
def test_the_class_tokens_contribution_depends_on_the_class_token_alone(fusion):
    module, other = head(fusion=fusion).eval(), torch.randn(4, 9, 12)
    words_changed = torch.cat((TOKENS[:, :1], other[:, 1:]), dim=1)
    cls_changed = torch.cat((other[:, :1], TOKENS[:, 1:]), dim=1)
    parts = module.contributions(TOKENS)
    assert torch.equal(module.contributions(words_changed).cls, parts.cls)
    assert torch.equal(module.contributions(cls_changed).word, parts.word)


def test_contributions_that_do_not_exist():
    with pytest.raises(ValueError, match="logits of fusion='aggre_all' with 3 classes do not split"):
        head(fusion="aggre_all").contributions(TOKENS)
    with pytest.raises(ValueError, match="logits of fusion='sum_fc' with 0 classes do not split"):
        head(num_classes=0).contributions(TOKENS)


@all_heads
def test_state_dict_copy_and_pickle_round_trips(words, fusion):
    module = head(words, fusion)
    total(module(TOKENS)).sum().backward()
    module.eval()
    expected = module(TOKENS)
    other = head(words, fusion).eval()
    assert not torch.equal(other(TOKENS), expected)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(TOKENS), expected)
    assert torch.equal(copy.deepcopy(module)(TOKENS), expected)
    unpickled = pickle.loads(pickle.dumps(module))
    assert torch.equal(unpickled(TOKENS), expected)
    assert unpickled.config == module.config


@all_words
def test_two_heads_of_one_configuration_share_nothing(words):
    config = head(words).config
    first, second = ClassificationHead(config), ClassificationHead(config)
    pointers = {value.data_ptr() for value in first.state_dict().values()}
    assert not pointers & {value.data_ptr() for value in second.state_dict().values()}
    before = copy.deepcopy(second.state_dict())
    optimizer = torch.optim.SGD(first.parameters(), lr=1.0)
    first(TOKENS).square().sum().backward()
    optimizer.step()
    assert all(map(torch.equal, second.state_dict().values(), before.values()))
    assert all(parameter.grad is None for parameter in second.parameters())


def test_building_and_running_heads_leaves_the_modules_as_they_were():
    modules = (build, published_form, published_heads, projection)
    state = [{name: repr(value) for name, value in vars(module).items()} for module in modules]
    for words in WORDS:
        head(words)(TOKENS).sum().backward()
    published_heads.Classifier({"type": "MGCrP", "args": {"dim": 12}}, 3)(TOKENS)
    assert [{name: repr(value) for name, value in vars(module).items()} for module in modules] == state


def test_the_printed_module_names_its_parts():
    text = repr(head(num_iters=3, alpha=0.3))
    assert "MultiheadCrossCovariancePool" in text
    assert "num_heads=2, q_dim=5, k_dim=4, center='token'" in text
    assert "SingularValuePowerNorm" in text
    assert "alpha=0.3, num_singular_values=1, num_iters=3" in text
    assert "GlobalCovariancePool" in repr(head("gcp"))
    assert "factor=0.5" in repr(head("mgcrp-scale"))


def test_the_example_of_the_documentation():
    module = ClassificationHead(HeadConfig(embed_dim=64, num_classes=3))
    assert module(torch.randn(2, 10, 64)).shape == (2, 3)
