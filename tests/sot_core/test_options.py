"""The command-line options of the head, the same on every side."""

import argparse
import dataclasses

import pytest

from sot_core import HeadConfig
from sot_core.options import HEAD_OPTIONS, add_head_options, head_settings


def parse(*words):
    parser = argparse.ArgumentParser()
    add_head_options(parser)
    return parser.parse_args(words)


def test_without_words_every_option_is_the_default_of_the_configuration():
    assert HeadConfig(8, 2, **head_settings(parse())) == HeadConfig(8, 2)


def test_every_field_is_reachable_but_those_that_the_side_decides():
    by_side = {"embed_dim", "num_classes", "has_cls_token", "two_layers"}
    fields = {field.name for field in dataclasses.fields(HeadConfig) if not field.name.startswith("cls_pooler")}
    assert {option.field for option in HEAD_OPTIONS} == fields - by_side


@pytest.mark.parametrize(
    "words, field, value",
    [
        (("--head-pooling", "gap"), "pooling", "gap"),
        (("--head-fusion", "words"), "fusion", "words"),
        (("--head-normalization", "epn"), "normalization", "epn"),
        (("--head-dropout", "0.5"), "drop_rate", 0.5),
        (("--head-projection", "batch_norm_relu"), "projection", "batch_norm_relu"),
        (("--mgcrp-heads", "2"), "num_heads", 2),
        (("--mgcrp-q", "9"), "q_dim", 9),
        (("--mgcrp-k", "5"), "k_dim", 5),
        (("--mgcrp-center", "none"), "center", None),
        (("--mgcrp-center", "sample"), "center", "sample"),
        (("--mgcrp-bias",), "proj_bias", True),
        (("--svpn-alpha", "0.3"), "alpha", 0.3),
        (("--svpn-iters", "3"), "num_iters", 3),
        (("--svpn-iters", "2", "--svpn-values", "0"), "num_singular_values", None),
        (("--svpn-eps", "1e-5"), "residual_eps", 1e-5),
        (("--gcp-iters", "7"), "gcp_iters", 7),
        (("--head-feature-norm", "batch_norm"), "feature_norm", "batch_norm"),
        (("--mgcrp-head-norm", "layer_norm"), "head_norm", "layer_norm"),
        (("--dropcov-rate", "0.25"), "channel_drop_rate", 0.25),
        (("--attention-mlp",), "attention_mlp", True),
        (("--efficient-queries", "4"), "num_queries", 4),
    ],
)
def test_each_option_sets_its_field(words, field, value):
    config = HeadConfig(8, 2, **head_settings(parse(*words)))
    assert getattr(config, field) == value
    changed = [name for name in config.to_dict() if getattr(config, name) != getattr(HeadConfig(8, 2), name)]
    assert set(changed) <= {field, "num_iters"}


def test_an_unknown_name_ends_with_status_2(capsys):
    with pytest.raises(SystemExit) as ended:
        parse("--head-pooling", "mgcpr")
    assert ended.value.code == 2
    assert "mgcrp" in capsys.readouterr().err


def test_absent_options_are_left_out():
    assert head_settings({"mgcrp_q": 3}) == {"q_dim": 3}
