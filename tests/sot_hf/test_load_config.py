"""Paths and configurations that are none, and what a command says of them."""

import json
import os
import pwd

import pytest

from sot_base.errors import UsageError
from sot_hf.load_config import load_config, saved_labels
from tests.sot_hf.models import tiny_model


def test_paths_that_are_no_folder(bert_folder, tmp_path):
    with pytest.raises(UsageError, match=f"no such model folder: {tmp_path / 'nowhere'}"):
        load_config(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="a file where a model's folder is expected"):
        load_config(str(bert_folder / "config.json"))


def test_kinds_of_models(bert_folder, tmp_path):
    assert load_config(str(bert_folder)).model_type == "bert"
    assert load_config(str(bert_folder), "spanbert").model_type == "bert"
    values = json.loads((bert_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": "no such kind"}))
    with pytest.raises(UsageError, match="does not name a kind of model that transformers knows, but 'no such kind'"):
        load_config(str(tmp_path))
    del values["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match="does not name a kind of model"):
        load_config(str(tmp_path))
    config = load_config(str(tmp_path), "bert")
    assert (config.model_type, config.hidden_size, config.name_or_path) == ("bert", 16, str(tmp_path))
    with pytest.raises(UsageError, match="no such model type: --model_type sponge"):
        load_config(str(tmp_path), "sponge")


def test_labels_of_saved_models(bert_folder, tmp_path):
    tiny_model("bert", num_labels=2, id2label={0: "no", 1: "yes"}).save_pretrained(tmp_path)
    assert saved_labels(load_config(str(tmp_path))) == ["no", "yes"]
    assert saved_labels(load_config(str(bert_folder))) is None


def test_a_user_without_a_home_directory(monkeypatch):
    """As in a container started under a user that it does not know."""

    def nobody(_):
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert os.path.expanduser("~") == "~"
    with pytest.raises(UsageError, match=r"no home directory .* of bert-base-cased .*; set HF_HOME to a folder"):
        load_config("bert-base-cased")
