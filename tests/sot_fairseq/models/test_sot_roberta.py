"""The model itself: heads by name, and checkpoints fitted to it."""

import logging

import pytest
import torch

import sot_fairseq
from sot_base.errors import UsageError
from tests.sot_fairseq.conftest import run_train

FC1 = "encoder.sentence_encoder.layers.0.fc1.weight"
HEAD = "classification_heads.sentence_classification_head."
HEAD_OPTIONS = {"pooling": "mgcrp", "num_heads": 2, "q_dim": 4, "k_dim": 3}


@pytest.fixture(scope="module")
def folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run_train(data, folder, "--max-update", "1")
    return folder


@pytest.fixture
def model(folder):
    return sot_fairseq.from_pretrained(folder, "checkpoint_last.pt").model


def fit(model, **changes):
    """The model's own tensors with some changed, or absent where the value is None, as a checkpoint for it."""
    state = {key: value.clone() for key, value in {**model.state_dict(), **changes}.items() if value is not None}
    model.upgrade_state_dict(state)
    return state


def test_own_tensors_stay_as_they_are(model, caplog):
    state = fit(model)
    assert state.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=0, atol=0)
    assert "20 of 20 backbone tensors loaded" in caplog.text


def test_missing_tensors_keep_the_models_values(model, caplog):
    with pytest.raises(UsageError, match=f"the checkpoint lacks 1 of 20 backbone tensors: {FC1}; .*--partial-backbone"):
        fit(model, **{FC1: None})
    model.allow_partial = True
    assert torch.equal(fit(model, **{FC1: None})[FC1], model.state_dict()[FC1])
    assert "19 of 20 backbone tensors loaded" in caplog.text


def test_tensors_of_another_shape_are_counted_and_named(model, caplog):
    model.allow_partial = True
    other = FC1.replace("fc1", "fc2")
    changes = {FC1: torch.zeros(24, 16), other: None, "encoder.sentence_encoder.layers.1.fc1.weight": torch.zeros(2)}
    with pytest.raises(UsageError, match="2 tensors differ: ") as caught:
        fit(model, **changes)
    assert f"{FC1} [24, 16] -> [16, 16]" in str(caught.value)
    assert "layers.1.fc1.weight [2] -> absent" in str(caught.value)
    assert "18 of 20 backbone tensors loaded" in caplog.text  # neither the missing one nor that of another shape


def test_a_head_of_another_shape_is_re_initialised(model, caplog):
    key = f"{HEAD}out_proj.weight"
    own = model.state_dict()[key]
    state = fit(model, **{key: torch.ones(3, 16)})
    assert torch.equal(state[key], own)
    (warning,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert "out_proj.weight [3, 16] -> [2, 16]" in warning
    model.strict_head = True
    with pytest.raises(
        UsageError, match=r"has another shape: .*; give the head's options .*, or leave out --strict-head"
    ):
        fit(model, **{key: torch.ones(3, 16)})


def test_heads_of_other_names_are_ignored(model, caplog):
    state = fit(model, **{"classification_heads.other.dense.weight": torch.ones(2)})
    assert state.keys() == model.state_dict().keys()
    assert "heads of the checkpoint that this model does not have are ignored: other" in caplog.text


def test_heads_are_found_by_name(model):
    assert model.get_head("sentence_classification_head") is model.classification_heads["sentence_classification_head"]
    with pytest.raises(
        UsageError, match=r"no classification head 'x': the model has \['sentence_classification_head'\]"
    ):
        model.get_head("x")


@pytest.mark.parametrize("name", ["", "a.b", "keys"])
def test_names_that_no_head_can_have(model, name):
    with pytest.raises(UsageError, match=f"not a name for a head: --classification-head-name {name!r}"):
        model.register_classification_head(name, 2, head_settings=HEAD_OPTIONS)


def test_a_second_order_head_ignores_padding(model):
    model.register_classification_head("second", 3, head_settings=HEAD_OPTIONS)
    model.eval()
    pad = model.encoder.dictionary.pad()
    tokens = torch.tensor([[0, 5, 6, 2], [0, 7, 2, pad]])
    logits, _ = model(tokens, features_only=True, classification_head_name="second")
    alone, _ = model(tokens[1:, :3], features_only=True, classification_head_name="second")
    assert logits.shape == (2, 3)
    torch.testing.assert_close(logits[1:], alone, rtol=1e-4, atol=1e-5)
