"""HeadConfig, the published dictionaries, and the classes that take them."""

import copy
import dataclasses
import re

import pytest
import torch
from torch import nn

from sot_core import Classifier, HeadConfig, OnlyVisualTokensClassifier
from sot_core.factory import ACTIVATIONS, FUSIONS, NORMALIZATIONS, POOLINGS
from sot_core.projection import PROJECTIONS
from tests.sot_core.cases import WORDS, config


def published(**changes):
    """The dictionary of the published README."""
    normalization = {
        "type": "svPN",
        "alpha": 0.5,
        "iterNum": 1,
        "svNum": 1,
        "regular": nn.Dropout(0.5),
        "input_dim": 14,
    }
    args = {"dim": 256, "num_heads": 6, "wr_dim": 14, "normalization": normalization}
    return {"type": "MGCrP", "fusion_type": "sum_fc", "args": args, **changes}


ERRORS = [
    *(({name: 0}, f"{name} must be a positive integer, got 0") for name in ("embed_dim", "num_heads", "q_dim")),
    *(({name: -1}, f"{name} must be a positive integer, got -1") for name in ("k_dim", "gcp_iters", "cls_pooler_dim")),
    ({"q_dim": 2.5}, "q_dim must be a positive integer, got 2.5"),
    ({"num_heads": "4"}, "num_heads must be a positive integer, got '4'"),
    ({"q_dim": None}, "q_dim must be a positive integer, got None"),
    ({"num_classes": -1}, "num_classes must be an integer of at least 0, got -1"),
    ({"num_classes": 2.0}, "num_classes must be an integer of at least 0, got 2.0"),
    ({"drop_rate": 1.0}, r"drop_rate must be in \[0, 1\), got 1.0"),
    ({"drop_rate": -0.1}, r"drop_rate must be in \[0, 1\), got -0.1"),
    ({"cls_pooler_drop_rate": 1.5}, r"cls_pooler_drop_rate must be in \[0, 1\), got 1.5"),
    ({"pooling": "max"}, "Unknown pooling 'max', expected one of "),
    ({"fusion": "sum"}, "Unknown fusion 'sum', expected one of "),
    ({"normalization": "svPN"}, "Unknown normalization 'svPN', expected one of "),
    ({"projection": "conv"}, "Unknown projection 'conv', expected one of "),
    ({"cls_pooler_activation": "swish"}, "Unknown cls_pooler_activation 'swish', expected one of "),
    ({"center": "none"}, r"Unknown center 'none', expected one of \['token', 'sample', None\]"),
    ({"has_cls_token": False}, "fusion='sum_fc' needs a class token, but has_cls_token is False: use 'words'"),
    ({"alpha": 0.0}, r"alpha must be in \(0, 1\], got 0.0"),
    ({"alpha": 2.0, "normalization": "svpn_exact"}, r"alpha must be in \(0, 1\], got 2.0"),
    ({"num_iters": 0}, "num_iters must be at least 1, got 0"),
    ({"residual_eps": -1.0}, "residual_eps must not be negative, got -1.0"),
    ({"num_singular_values": 0}, "num_singular_values must be at least 1 or None, got 0"),
    ({"num_singular_values": 2}, "num_singular_values=2 needs num_iters >= 2, got 1"),
    ({"num_singular_values": None}, "num_singular_values=None needs num_iters >= 2, got 1"),
]


@pytest.mark.parametrize("options, message", ERRORS, ids=lambda value: str(value)[:40])
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        HeadConfig(**{"embed_dim": 8, "num_classes": 2, **options})


def test_every_choice_is_listed_in_its_error():
    choices = {
        "pooling": POOLINGS,
        "fusion": FUSIONS,
        "normalization": NORMALIZATIONS,
        "projection": PROJECTIONS,
        "cls_pooler_activation": ACTIVATIONS,
    }
    for name, values in choices.items():
        with pytest.raises(ValueError, match="expected one of") as error:
            HeadConfig(8, 2, **{name: "?"})
        assert all(repr(value) in str(error.value) for value in values)


def test_svpns_numbers_do_not_matter_to_other_normalisations():
    for other in ({"normalization": "epn"}, {"pooling": "gap"}):
        assert HeadConfig(8, 2, num_singular_values=2, **other).num_singular_values == 2


def test_numpy_and_bool_free_integers_are_integers():
    numpy = pytest.importorskip("numpy")
    assert HeadConfig(8, numpy.int64(3)).num_classes == 3


@pytest.mark.parametrize("words", WORDS)
def test_dictionary_round_trip(words):
    original = config(words)
    assert HeadConfig.from_dict(original.to_dict()) == original
    assert hash(original) == hash(config(words))


def test_a_configuration_cannot_be_changed():
    original = HeadConfig(8, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        original.num_classes = 3
    assert original.replace(num_classes=3).num_classes == 3
    assert original.num_classes == 2
    with pytest.raises(ValueError, match="num_heads must be a positive integer"):
        original.replace(num_heads=0)


def test_published_dictionary():
    assert HeadConfig.from_dict(published(), num_classes=10) == HeadConfig(
        embed_dim=256, num_classes=10, num_heads=6, q_dim=14, k_dim=14, drop_rate=0.5
    )


@pytest.mark.parametrize(
    "name, field", [("svPN", "svpn"), ("ePN", "epn"), ("LN", "layer_norm"), ("sqrt_d", "scale"), (None, "none")]
)
def test_published_normalisations(name, field):
    values = published()
    values["args"]["normalization"]["type"] = name
    assert HeadConfig.from_dict(values, num_classes=10).normalization == field


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"type": "GCP"}, {"pooling": "gcp"}),
        ({"type": "GAP"}, {"pooling": "gap"}),
        ({"type": None}, {"fusion": "cls"}),
        ({"type": "fc"}, {"fusion": "cls", "cls_pooler_dim": 1280, "cls_pooler_activation": "none"}),
        ({"fusion_type": "concat"}, {"fusion": "concat"}),
        ({"center": "sample"}, {"center": "sample"}),
    ],
    ids=str,
)
def test_published_types(changes, expected):
    read = HeadConfig.from_dict(published(**changes), num_classes=10)
    assert {name: getattr(read, name) for name in expected} == expected


def test_dropout_as_a_module_a_number_or_none():
    for given, rate in ((nn.Dropout(0.3), 0.3), (0.4, 0.4), (None, 0.0)):
        values = published()
        values["args"]["normalization"]["regular"] = given
        assert HeadConfig.from_dict(values, num_classes=10).drop_rate == rate


def test_no_normalisation_at_all():
    values = published()
    values["args"]["normalization"] = None
    assert HeadConfig.from_dict(values, num_classes=10).normalization == "none"


def test_names_of_the_bert_recipe():
    values = {"embed_dim": 768, "MGCrP_q": 112, "MGCrP_k": 48, "MGCrP_dp": 0.7}
    expected = HeadConfig(768, 3, num_heads=1, q_dim=112, k_dim=48, drop_rate=0.7)
    assert HeadConfig.from_dict(values, num_classes=3) == expected
    assert HeadConfig.from_dict(values, num_classes=3, num_heads=4) == expected
    for order in (values | {"num_heads": 2}, {"num_heads": 2} | values):  # said outright, it counts
        assert HeadConfig.from_dict(order, num_classes=3).num_heads == 2


@pytest.mark.parametrize(
    "place, key, message",
    [
        ((), "fusion_typ", "Unknown key 'fusion_typ' in the head's dictionary; did you mean 'fusion_type'?"),
        ((), "num_head", "Unknown key 'num_head' in the head's dictionary; did you mean 'num_heads'?"),
        (("args",), "wr_dims", "Unknown key 'wr_dims' in args; did you mean 'wr_dim'?"),
        (("args", "normalization"), "iternum", "Unknown key 'iternum' in normalization; did you mean 'iterNum'?"),
        (("args",), "zzz", "Unknown key 'zzz' in args; expected one of "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_unknown_key_names_the_nearest(place, key, message):
    values = inner = published()
    for name in place:
        inner = inner[name]
    inner[key] = 1
    with pytest.raises(ValueError, match="Unknown key") as error:
        HeadConfig.from_dict(values, num_classes=2)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "values, message",
    [
        (published(type="MGCRP"), r"Unknown type 'MGCRP', expected one of \['MGCrP', 'GCP', 'GAP', 'fc', None\]"),
        (published(fusion_type="sum"), "Unknown fusion 'sum'"),
        (published(args=5), "args must be a dictionary, got 5"),
        ({"num_classes": 2}, "embed_dim is missing from the head's dictionary"),
        ({"embed_dim": 2}, "num_classes is missing from the head's dictionary"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_a_dictionary_may_not_say(values, message):
    with pytest.raises(ValueError, match=message):
        HeadConfig.from_dict(values, **({} if "embed_dim" in values else {"num_classes": 2}))


def test_wrong_values_inside_a_published_dictionary():
    values = published()
    values["args"]["normalization"]["type"] = "svpn"
    with pytest.raises(ValueError, match="Unknown normalization type 'svpn', expected one of "):
        HeadConfig.from_dict(values, num_classes=2)
    values = published()
    values["args"]["normalization"]["input_dim"] = 15
    with pytest.raises(ValueError, match="input_dim must equal wr_dim, got 15 and 14"):
        HeadConfig.from_dict(values, num_classes=2)
    values = published()
    values["args"]["normalization"]["regular"] = nn.ReLU()
    with pytest.raises(ValueError, match="regular must be a dropout or its rate, got "):
        HeadConfig.from_dict(values, num_classes=2)


def test_the_dictionary_is_not_changed_and_builds_twice():
    values = published()
    before = copy.deepcopy(values)
    before["args"]["normalization"]["regular"] = values["args"]["normalization"]["regular"]
    heads = [Classifier(values, 10), Classifier(values, 10), OnlyVisualTokensClassifier(values, 10)]
    assert values == before
    assert heads[0].config == heads[1].config
    assert all(head.pool.proj.weight is not heads[0].pool.proj.weight for head in heads[1:])
    assert all(module is not values["args"]["normalization"]["regular"] for head in heads for module in head.modules())


def test_classifier():
    head = Classifier(published())
    assert head(torch.randn(2, 5, 256)).shape == (2, 1000)
    assert Classifier(published(), num_classes=7)(torch.randn(2, 5, 256)).shape == (2, 7)


def test_classifier_of_visual_tokens_alone():
    tokens = torch.randn(2, 5, 256)
    for fusion in ("sum_fc", "concat", "aggre_all"):
        head = OnlyVisualTokensClassifier(published(fusion_type=fusion), num_classes=7).eval()
        assert not head.config.has_cls_token
        assert torch.allclose(head(tokens), head.word_fc(head.pool(tokens)))


WRONG = (None, True, 2**40, -1, 0.5, float("nan"), "3", "svpn", [], [1], {}, {"a": 1}, (), b"x", object())


@pytest.mark.parametrize("form", ["fields", "published"])
def test_any_value_under_any_key_is_taken_or_named(form):
    fields = HeadConfig(embed_dim=8, num_classes=2).to_dict()
    normalization = {"type": "svPN", "alpha": 0.5, "iterNum": 1, "svNum": 1, "regular": 0.1, "input_dim": 4}
    args = {"dim": 8, "num_heads": 2, "wr_dim": 4, "qkv_bias": False, "normalization": normalization}
    published = {"type": "MGCrP", "fusion_type": "sum_fc", "args": args, "num_classes": 2}
    taken = refused = 0
    for values, path in _places(fields if form == "fields" else published):
        for value in WRONG:
            place = values
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            problem = _problem(values)
            taken, refused = taken + (problem is None), refused + (problem is not None)
            assert problem is None or _spelled(path[-1]) & set(re.findall(r"\w+", problem)), (path, value, problem)
    assert refused > 4 * taken > 0


def _problem(values):
    try:
        HeadConfig.from_dict(values)
    except ValueError as error:
        return str(error)
    return None


def _places(values):
    """A fresh copy of a dictionary and the path of a value, for each value in it."""
    for key, value in values.items():
        yield copy.deepcopy(values), (key,)
        if isinstance(value, dict):
            for inner, rest in _places(value):
                yield {**copy.deepcopy(values), key: inner}, (key, *rest)


def _spelled(key):
    """What an error may call a key of the published form."""
    names = {
        "dim": "embed_dim",
        "wr_dim": "q_dim",
        "input_dim": "k_dim",
        "iterNum": "num_iters",
        "regular": "drop_rate",
    }
    names |= {"svNum": "num_singular_values", "fusion_type": "fusion", "qkv_bias": "proj_bias"}
    names |= {"type": "pooling"}
    others = {"wr_dim": {"input_dim", "wr_dim"}, "args": {"embed_dim"}}
    return {key, names.get(key, key)} | others.get(key, set())


def test_a_dictionary_that_is_none():
    for value in (None, [], "MGCrP", 3):
        with pytest.raises(ValueError, match="a head's dictionary is expected"):
            HeadConfig.from_dict(value)
    with pytest.raises(ValueError, match="Unknown key 3 in the head's dictionary"):
        HeadConfig.from_dict({3: 4})
