"""The published dictionaries, read into a configuration."""

import pytest
from torch import nn

from sot_core import HeadConfig
from tests.sot_core.cases_published import published


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


def test_a_field_that_was_removed_is_left_out():
    values = {"embed_dim": 12, "num_classes": 3, "recompute": True}
    assert HeadConfig.from_dict(values) == HeadConfig(12, 3)
    with pytest.raises(TypeError, match="recompute"):
        HeadConfig(12, 3, recompute=True)
