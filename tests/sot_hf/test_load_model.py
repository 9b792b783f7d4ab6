"""Folders that are not as they were saved: what is wrong is named, and nothing is made up in its place."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PretrainedConfig, XLNetConfig

from sot_base.errors import UsageError
from sot_hf import SoTConfig, SoTForSequenceClassification
from sot_hf.load_config import load_config
from sot_hf.load_model import load_model
from sot_text.glue import get_task
from tests.sot_hf.models import HEAD, batch, randomize, tiny_model

RTE = get_task("RTE")
NAMES = dict(enumerate(RTE.labels))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    randomize(tiny_model("bert", num_labels=2, id2label=NAMES)).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def load(folder):
    """As a command line does."""
    path = str(folder)
    model, _ = load_model(path, load_config(path), RTE, {}, {}, train=False)
    return model


def change(folder, **values):
    file = folder / "config.json"
    content = json.loads(file.read_text())
    for name, value in values.items():
        part = content
        *path, last = name.split("__")
        for key in path:
            part = part[key]
        part[last] = value
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"head": "mgcrp"}, "head must be a dictionary, got 'mgcrp'"),
        ({"head__drop_rate": "0.1"}, "drop_rate must be a number, got '0.1'"),
        ({"head__alpha": None}, "alpha must be a number, got None"),
        ({"head__pooling": ["gcp"]}, "Unknown pooling"),
        ({"head__q_dim": 5}, r"other shapes than config.json says .*word_fc.weight \[2, 24\] -> \[2, 30\]"),
        ({"head__proj_bias": True}, r"the files lack 1 of its tensors \(classifier.pool.proj.bias\)"),
        ({"backbone": "bert"}, "backbone must be a configuration"),
        ({"backbone__hidden_size": "16"}, "hidden_size"),
        ({"backbone__hidden_act": "gelux"}, "no 'gelux'"),
        ({"backbone__num_hidden_layers": 3}, "the files lack 16 of its tensors"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label must number the labels 0, 1, 2"),
        ({"id2label": ["a", "b"]}, "cannot load the model"),
        ({"problem_type": "ranking"}, "Unknown problem_type 'ranking'"),
        ({"freeze_backbone": "no"}, "freeze_backbone must be True or False, got 'no'"),
    ],
)  # fmt: skip
def test_configurations_edited_by_hand(values, message, folder):
    change(folder, **values)
    with pytest.raises(UsageError, match=message):
        load(folder)


def test_weights_that_are_not_whole(folder):
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    save_file({key: value for key, value in tensors.items() if "word_fc" not in key}, weights, {"format": "pt"})
    for function in (load, SoTForSequenceClassification.from_pretrained):
        with pytest.raises(UsageError, match=r"lack 2 of its tensors \(classifier.word_fc.bias, .*config.json"):
            function(folder)
    for content in (
        b"",
        b"version https://git-lfs.github.com/spec/v1",
        (folder / "model.safetensors").read_bytes()[:99],
    ):
        weights.write_bytes(content)
        with pytest.raises(UsageError, match="cannot load the weights"):
            load(folder)
    weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"no weights")
    with pytest.raises(UsageError, match=r"\(Weights only load failed\)"):
        load(folder)


def test_a_frozen_backbone_is_frozen_when_loaded(saved, tmp_path, caplog):
    model = SoTForSequenceClassification.from_pretrained(saved, freeze_backbone=True)
    model.save_pretrained(tmp_path)
    caplog.clear()
    for each in (model, SoTForSequenceClassification.from_pretrained(tmp_path)):
        assert not any(parameter.requires_grad for parameter in each.backbone.parameters())
        assert all(parameter.requires_grad for parameter in each.classifier.parameters())
    assert [f"{tmp_path}: the backbone is frozen" in message for message in caplog.messages] == [True]
    caplog.clear()
    model, _ = load_model(str(tmp_path), load_config(str(tmp_path)), RTE, {}, {}, train=True)  # not asked for here
    assert all(parameter.requires_grad for parameter in model.backbone.parameters())
    assert not caplog.messages


def test_no_parameter_without_a_gradient_after_loading(tmp_path):
    backbone = XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=24, vocab_size=18)
    SoTForSequenceClassification(SoTConfig(backbone, head=HEAD, num_labels=3)).save_pretrained(tmp_path)
    model = SoTForSequenceClassification.from_pretrained(tmp_path).train()
    rows = batch()
    model(**rows, token_type_ids=torch.zeros_like(rows["input_ids"])).loss.backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_arguments_beside_a_saved_model_count_like_its_configuration(saved):
    load_saved = SoTForSequenceClassification.from_pretrained
    model = load_saved(saved, head={"fusion": "cls"})
    assert model.config.head["cls_pooler_dim"] == 16
    whole = load_saved(saved)
    assert torch.equal(model.classifier.out_proj.weight, whole.classifier.out_proj.weight)
    assert load_saved(saved, id2label={0: "no", 1: "yes"}).config.label2id == {"no": 0, "yes": 1}
    assert load_saved(saved, label2id={"no": 0, "yes": 1}).config.id2label == {0: "no", 1: "yes"}
    assert load_saved(saved, num_labels=2).config.id2label == NAMES
    with pytest.raises(ValueError, match="did you mean 'fusion'"):
        load_saved(saved, head={"fusio": "cls"})
    with pytest.raises(ValueError, match="num_labels=3 beside 2 names"):
        load_saved(saved, num_labels=3, id2label={0: "no", 1: "yes"})
    assert AutoConfig.from_pretrained(saved, problem_type="regression").problem_type == "regression"


def test_config_json_is_read_once(saved, bert_folder, monkeypatch):
    opened = []
    read = PretrainedConfig._dict_from_json_file.__func__
    monkeypatch.setattr(
        PretrainedConfig,
        "_dict_from_json_file",
        classmethod(lambda cls, file: opened.append(file) or read(cls, file)),
    )
    ways = {
        "a saved model, by a command": lambda: load(saved),
        "a saved model, in Python": lambda: SoTForSequenceClassification.from_pretrained(saved),
        "a backbone, by a command": lambda: load_model(
            str(bert_folder), load_config(str(bert_folder)), RTE, HEAD, {}, train=True
        ),
        "a backbone, in Python": lambda: SoTForSequenceClassification.from_pretrained(bert_folder, head=HEAD),
    }
    for way, run in ways.items():
        opened.clear()
        run()
        assert [str(file).rpartition("/")[2] for file in opened] == ["config.json"], way
