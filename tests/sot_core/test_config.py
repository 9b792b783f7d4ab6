"""HeadConfig: what it refuses, and its way to a dictionary and back."""

import copy
import dataclasses
import re

import pytest

from sot_core import HeadConfig
from sot_core.build import ACTIVATIONS, FUSIONS, NORMALIZATIONS, POOLINGS
from sot_core.projection import PROJECTIONS
from tests.sot_core.cases import WORDS, config

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
    ({"pooling": "median"}, "Unknown pooling 'median', expected one of "),
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
    ({"num_queries": 0}, "num_queries must be a positive integer, got 0"),
    ({"pooling": "efficient"}, "num_queries of pooling='efficient' must divide embed_dim=8, got 32"),
    ({"pooling": "attention", "num_heads": 3}, "num_heads of pooling='attention' must divide embed_dim=8, got 3"),
    ({"pooling": "moment", "num_heads": 1}, "num_heads of pooling='moment' must be at least 2, got 1"),
    ({"attention_mlp": 1}, "attention_mlp must be True or False, got 1"),
    ({"channel_drop_rate": 1.0}, r"channel_drop_rate must be in \[0, 1\), got 1.0"),
    ({"head_norm": "batch_norm"}, r"Unknown head_norm 'batch_norm', expected one of \['none', 'layer_norm'\]"),
    ({"feature_norm": None}, r"Unknown feature_norm None, expected one of \['none', 'batch_norm'\]"),
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
