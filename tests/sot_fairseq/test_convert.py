"""Conversion of Hugging Face BERT files: every form they come in, and every wrong file."""

import argparse
import json
import os
import sys

import pytest
import torch
from fairseq.data import Dictionary
from fairseq_cli import preprocess as fairseq_preprocess
from fairseq_cli import train as fairseq_train
from torch import nn
from transformers import BertForPreTraining, BertForQuestionAnswering, BertTokenizer

from sot_base.errors import UsageError, run_main
from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq.convert import convert, main
from sot_fairseq.pretrained.arch_args import fairseq_arch_args
from sot_text.formats.architecture import BertArchitecture
from sot_text.formats.bert_weights import canonical_bert_names, fairseq_to_bert
from sot_text.formats.checkpoint_file import file_kind, read_bert_weights, read_fairseq_checkpoint
from sot_text.formats.wordpiece import fairseq_order
from tests.sot_fairseq.bert_files import (
    FAIRSEQ_NAMES,
    VOCAB,
    random_bert,
    save_bert,
    save_pickle,
    write_tokenizer,
)

OUTPUTS = ["architecture.json", "dict.txt", "model.pt", "tokenizer"]


def load(folder):
    return torch.load(folder / "model.pt", weights_only=True)


def old_names(tensors, prefix=""):
    """TensorFlow's names of a layer norm's parameters, as the first releases had them."""
    rename = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in tensors.items():
        for new, old in rename.items():
            name = name.replace(new, old)
        renamed[prefix + name] = tensor
    return renamed


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    return random_bert()


@pytest.fixture
def folder(tmp_path, bert):
    return save_bert(tmp_path / "hf", bert)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("prefix", ["", "bert.", "module.bert."])
def test_every_form_of_names_gives_the_same_model(tmp_path, bert, folder, prefix, legacy):
    expected = load(convert(folder, tmp_path / "a"))
    old = save_pickle(tmp_path / "old", old_names(bert.state_dict(), prefix), legacy)
    found = load(convert(old / "pytorch_model.bin", tmp_path / "b"))
    assert expected["model"].keys() == found["model"].keys()
    assert all(torch.equal(tensor, found["model"][name]) for name, tensor in expected["model"].items())
    assert "pooler.dense.weight" in found["model"]
    assert expected["cfg"] == found["cfg"]


def test_rows_follow_the_dictionary(tmp_path, bert, folder):
    out = convert(folder, tmp_path / "out")
    state = load(out)["model"]
    dictionary = Dictionary.load(str(out / "dict.txt"))
    dictionary.add_symbol("<mask>")
    words, positions = bert.embeddings.word_embeddings.weight, bert.embeddings.position_embeddings.weight
    assert len(dictionary) == len(VOCAB) == len(state["encoder.sentence_encoder.embed_tokens.weight"])
    for row, piece in enumerate(VOCAB):
        index = dictionary.index(FAIRSEQ_NAMES.get(piece, piece))
        assert torch.equal(state["encoder.sentence_encoder.embed_tokens.weight"][index], words[row]), piece
    assert torch.equal(state["encoder.sentence_encoder.embed_positions.weight"][2:], positions)
    assert torch.equal(state["pooler.dense.weight"], bert.pooler.dense.weight)
    assert torch.equal(state["pooler.dense.bias"], bert.pooler.dense.bias)


def test_outputs(tmp_path, folder):
    out = convert(folder, tmp_path / "deep" / "out", arch="spanbert_base")
    assert sorted(os.listdir(out)) == OUTPUTS
    assert (out / "tokenizer" / "vocab.txt").read_text().split("\n") == [*VOCAB, ""]
    assert json.loads((out / "tokenizer" / "tokenizer_config.json").read_text())["do_lower_case"] is True
    sizes = json.loads((out / "architecture.json").read_text())
    assert sizes.pop("arch") == "spanbert_base"
    assert BertArchitecture(**sizes) == BertArchitecture(3, 32, 48, 4, 20, 2, "gelu", 1e-12)


def test_half_precision_becomes_float32(tmp_path, bert):
    old = save_pickle(tmp_path / "hf", {name: tensor.half() for name, tensor in bert.state_dict().items()})
    state = load(convert(old, tmp_path / "out"))
    assert {tensor.dtype for tensor in state["model"].values()} == {torch.float32}


def test_heads_of_other_tasks_are_ignored_and_listed(tmp_path, caplog):
    folder = save_bert(tmp_path / "hf", random_bert(BertForQuestionAnswering))
    with caplog.at_level("INFO"):
        state = load(convert(folder, tmp_path / "out"))
    assert "2 tensors of other heads ignored: qa_outputs.bias, qa_outputs.weight" in caplog.text
    assert "no pooler" in caplog.text
    assert not any("qa_outputs" in name or "pooler" in name for name in state["model"])


def test_masked_language_head_is_kept(tmp_path, caplog):
    bert = random_bert(BertForPreTraining)
    with caplog.at_level("INFO"):
        state = load(convert(save_bert(tmp_path / "hf", bert), tmp_path / "out"))["model"]
    transform = bert.cls.predictions.transform
    assert torch.equal(state["encoder.lm_head.dense.weight"], transform.dense.weight)
    assert torch.equal(state["encoder.lm_head.layer_norm.bias"], transform.LayerNorm.bias)
    assert torch.equal(state["encoder.lm_head.bias"][-1], bert.cls.predictions.bias[VOCAB.index("[MASK]")])
    assert (
        state["encoder.lm_head.weight"].data_ptr() == state["encoder.sentence_encoder.embed_tokens.weight"].data_ptr()
    )
    assert "ignored: cls.seq_relationship.bias, cls.seq_relationship.weight" in caplog.text


def test_round_trip(bert, folder, tmp_path):
    state = load(convert(folder, tmp_path / "out"))
    back = fairseq_to_bert(state["model"], BertArchitecture(3, 32, 48, 4, 20), fairseq_order(VOCAB))
    expected = bert.state_dict()
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in expected.items())


def test_tokenizer_json_alone(tmp_path, folder):
    expected = load(convert(folder, tmp_path / "a"))["model"]
    BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "vocab.txt").unlink()
    assert (folder / "tokenizer.json").exists()
    out = convert(folder, tmp_path / "b")
    assert all(torch.equal(tensor, load(out)["model"][name]) for name, tensor in expected.items())
    assert (out / "tokenizer" / "vocab.txt").read_text().split("\n") == [*VOCAB, ""]


def test_vocabulary_from_elsewhere(tmp_path, folder):
    (tmp_path / "other").mkdir()
    write_tokenizer(tmp_path / "other", [piece.replace("cat", "Cat") for piece in VOCAB], lower_case=False)
    out = convert(folder, tmp_path / "out", vocab=tmp_path / "other" / "vocab.txt")
    assert "Cat 1\n" in (out / "dict.txt").read_text()
    assert json.loads((out / "tokenizer" / "tokenizer_config.json").read_text())["do_lower_case"] is False


def test_rows_that_pad_the_matrix_are_dropped(tmp_path):
    bert = random_bert(vocab_size=64)
    state = load(convert(save_bert(tmp_path / "hf", bert), tmp_path / "out"))["model"]
    assert len(state["encoder.sentence_encoder.embed_tokens.weight"]) == len(VOCAB)
    assert torch.equal(
        state["encoder.sentence_encoder.embed_tokens.weight"][0], bert.embeddings.word_embeddings.weight[3]
    )


@pytest.mark.parametrize("rows", [14, len(VOCAB) + 128])
def test_another_vocabulary_is_refused(tmp_path, rows):
    folder = save_bert(tmp_path / "hf", random_bert(vocab_size=rows))
    with pytest.raises(UsageError, match=f"15 entries and the embedding {rows} rows.*vocab.txt that belongs"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_casing_against_the_vocabulary_is_refused(tmp_path, folder):
    write_tokenizer(folder, [piece.replace("cat", "Cat") for piece in VOCAB], lower_case=True)
    with pytest.raises(UsageError, match=r"uncased text is asked for, the vocabulary is cased .*vocab\.txt"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_missing_tensors_are_named(tmp_path, bert):
    tensors = bert.state_dict()
    del tensors["encoder.layer.1.attention.self.key.bias"], tensors["embeddings.LayerNorm.weight"]
    old = save_pickle(tmp_path / "hf", tensors)
    with pytest.raises(UsageError, match=r"2 of 53 encoder .* embeddings.LayerNorm.weight, encoder.layer.1.attention"):
        convert(old, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_hidden_layers": 2}, r"16 encoder tensors do not fit the config.json: .* encoder.layer.2.attention"),
        ({"num_hidden_layers": 4}, r"16 of 69 encoder tensors are missing: .* encoder.layer.3"),
        ({"intermediate_size": 64}, r"encoder.layer.0.intermediate.dense.weight has shape \(48, 32\), .*\(64, 32\)"),
        ({"max_position_embeddings": 512}, r"position_embeddings.weight has shape \(20, 32\), .*\(512, 32\)"),
        ({"type_vocab_size": 0}, r"1 encoder tensors do not fit .* embeddings.token_type_embeddings.weight"),
        ({"num_attention_heads": 5}, r"5 attention heads do not divide hidden_size 32: .*config.json"),
        ({"hidden_act": "swish"}, r"hidden_act 'swish' is not supported: .*config.json"),
        ({"position_embedding_type": "relative_key"}, r"position_embedding_type 'relative_key' is not supported"),
        ({"model_type": "distilbert"}, r"a 'distilbert' model where a BERT or SpanBERT is expected: .*config.json"),
        ({"hidden_size": None}, r"hidden_size is missing: .*config.json"),
    ],
)
def test_config_of_another_model(tmp_path, bert, change, message):
    old = save_pickle(tmp_path / "hf", bert.state_dict(), **change)
    config = {
        name: value for name, value in (json.loads((old / "config.json").read_text())).items() if value is not None
    }
    (old / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=message):
        convert(old, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name, damaged, message",
    [
        ("embeddings.word_embeddings.weight", torch.tensor(1.0), r"15 entries and the embedding 0 rows: .*model.bin"),
        ("pooler.dense.bias", torch.ones(3), r"pooler.dense.bias has shape \(3,\), the config.json says \(32,\)"),
    ],
)
def test_tensors_of_another_shape(tmp_path, bert, name, damaged, message):
    old = save_pickle(tmp_path / "hf", bert.state_dict() | {name: damaged})
    with pytest.raises(UsageError, match=message):
        convert(old, tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Shell:
    """A pickle that would run a command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def write_bytes(content):
    return lambda path: path.write_bytes(content)


def write_cut_off(path):
    torch.save({"a": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])


def write_cut_off_legacy(path):
    torch.save({"a": torch.zeros(1000)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-1000])


def write_pickle(content):
    return lambda path: torch.save(content, path)


WRONG_FILES = {
    "empty": (write_bytes(b""), "the file is empty: {path}"),
    "tsv": (write_bytes(b"t\tl\na\tx\nb\ty"), "not a checkpoint: {path}"),
    "html": (write_bytes(b"<!DOCTYPE html><html>404</html>"), "not a checkpoint: {path}"),
    "lfs": (
        write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0"),
        "a Git LFS pointer.*git lfs pull",
    ),
    "cut off": (write_cut_off, "the file is cut off or damaged .*{path}; get or save it again"),
    "cut off legacy": (write_cut_off_legacy, "the file is cut off or damaged .*{path}"),
    "cut off safetensors": (write_bytes(b'\x40\0\0\0\0\0\0\0{"a":'), "the file is cut off or damaged .*{path}"),
    "module": (
        write_pickle(nn.Linear(2, 2)),
        r"needs torch\.nn\.modules\.linear\.Linear, which safe loading refuses: {path}; .*safetensors",
    ),
    "list": (write_pickle([torch.zeros(2)]), "a saved list where a dictionary is expected: {path}"),
    "fairseq": (
        write_pickle({"model": {"encoder.sentence_encoder.version": torch.zeros(1)}, "cfg": {}}),
        "a fairseq checkpoint where Hugging Face BERT weights is expected: {path}; .*--restore-file",
    ),
    "fairseq weights": (
        write_pickle({"encoder.sentence_encoder.embed_tokens.weight": torch.zeros(1)}),
        "bare state dict of a fairseq model where .*: {path}; give the fairseq checkpoint",
    ),
    "roberta": (
        write_pickle({"roberta.embeddings.word_embeddings.weight": torch.zeros(1)}),
        "Hugging Face RoBERTa weights where .*: {path}; use fairseq's own archive",
    ),
    "image": (
        write_pickle({"state_dict": {"patch_embed.proj.weight": torch.zeros(1)}, "args": argparse.Namespace()}),
        "weights of an image model where .*: {path}; .*vision/validate.py",
    ),
    "unknown": (write_pickle({"weight": torch.zeros(1)}), "no known kind of weights where .*: {path}"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_wrong_files(tmp_path, name):
    write, message = WRONG_FILES[name]
    folder = save_pickle(tmp_path / "hf", {})
    path = folder / "pytorch_model.bin"
    write(path)
    with pytest.raises(UsageError, match=message.format(path=path)):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pickle_runs_no_code(tmp_path):
    folder = save_pickle(tmp_path / "hf", {"a": Shell(tmp_path / "ran")})
    with pytest.raises(UsageError, match=r"needs \w+\.system, which safe loading refuses: .*pytorch_model.bin"):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "ran").exists()


def test_bert_weights_given_as_a_fairseq_checkpoint(folder):
    with pytest.raises(
        UsageError, match=r"BERT weights where a fairseq checkpoint is expected: .*sot_fairseq\.convert"
    ):
        read_fairseq_checkpoint(folder / "model.safetensors")


def test_kinds_of_real_files(tmp_path, folder):
    assert file_kind(read_checkpoint(folder / "model.safetensors")) == "bert"
    assert file_kind(read_checkpoint(convert(folder, tmp_path / "out") / "model.pt")) == "fairseq"
    assert "extra_state" in read_fairseq_checkpoint(tmp_path / "out" / "model.pt")


def test_a_wrapped_state_dict_is_read(tmp_path, bert):
    torch.save({"state_dict": bert.state_dict(), "epoch": 3}, tmp_path / "weights.pt")
    assert read_bert_weights(tmp_path / "weights.pt").keys() == bert.state_dict().keys()


def test_canonical_names_keep_other_words():
    names = ["module.bert.a.LayerNorm.gamma", "bert.beta_x.weight", "bert.a.gamma_b.beta", "module.module_x.bias"]
    assert list(canonical_bert_names(dict.fromkeys(names))) == [
        "a.LayerNorm.weight",
        "beta_x.weight",
        "a.gamma_b.bias",
        "module_x.bias",
    ]


@pytest.mark.parametrize(
    "remove, message",
    [
        ("model.safetensors", r"no weights in the folder: .*hf; it needs model.safetensors or pytorch_model.bin"),
        ("config.json", r"cannot read config.json .*hf.config.json; put it beside the weights"),
        ("vocab.txt", r"cannot read .*vocab.txt"),
    ],
)
def test_missing_files(tmp_path, folder, remove, message):
    (folder / remove).unlink()
    with pytest.raises(UsageError, match=message):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_earlier_conversion_is_replaced_and_nothing_else(tmp_path, folder):
    out = convert(folder, tmp_path / "out")
    before = (out / "model.pt").stat().st_ino
    convert(folder, out)
    assert (out / "model.pt").stat().st_ino != before
    (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"the output folder holds other files \(notes.txt\): .*out"):
        convert(folder, out)
    assert sorted(os.listdir(out)) == sorted([*OUTPUTS, "notes.txt"])
    with pytest.raises(UsageError, match="a file where the output folder should be"):
        convert(folder, out / "notes.txt")
    assert sorted(os.listdir(tmp_path)) == ["hf", "out"]


def test_command_line(tmp_path, folder, monkeypatch, capsys):
    out = tmp_path / "an out"
    monkeypatch.setattr(sys, "argv", ["convert", str(folder), "--output-dir", str(out), "--uncased"])
    with pytest.raises(SystemExit) as exit_:
        run_main(main)
    assert (exit_.value.code, capsys.readouterr().out) == (0, f"{out}\n")
    monkeypatch.setattr(sys, "argv", ["convert", str(tmp_path / "no"), "--output-dir", str(tmp_path / "b")])
    with pytest.raises(SystemExit) as exit_:
        run_main(main)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: no such file or folder: {tmp_path / 'no'}; check the path\n")


def test_checkpoint_needs_no_allowed_classes(tmp_path, folder):
    out = convert(folder, tmp_path / "out")
    assert argparse.Namespace not in torch.serialization.get_safe_globals()
    assert load(out).keys() >= {"cfg", "model", "extra_state", "optimizer_history"}


@pytest.fixture
def data(tmp_path, folder, monkeypatch):
    """A converted encoder and a tiny data set in fairseq's binary form."""
    out = convert(folder, tmp_path / "out")
    (tmp_path / "raw").mkdir()
    lines = ["the cat sat on the mat .", "a mat", "the cat sat", "a cat ##s ."] * 2
    for name, rows in (("text", lines), ("label", ["yes", "no"] * 4)):
        (tmp_path / "raw" / f"train.{name}").write_text("".join(f"{row}\n" for row in rows))
    for part, name, srcdict in (("input0", "text", ["--srcdict", out / "dict.txt"]), ("label", "label", [])):
        words = ["--only-source", "--trainpref", tmp_path / "raw" / f"train.{name}", *srcdict]
        words += ["--destdir", tmp_path / "bin" / part]
        monkeypatch.setattr(sys, "argv", ["fairseq-preprocess", *map(str, words)])
        fairseq_preprocess.cli_main()
    return out, tmp_path / "bin"


@pytest.mark.parametrize("reset", [True, False])
def test_fairseq_train_starts_from_it(tmp_path, data, monkeypatch, reset):
    out, binary = data
    options = """--task sentence_prediction --criterion sentence_prediction --num-classes 2 --init-token 0 --cpu
        --optimizer adam --lr 0 --max-update 1 --batch-size 4 --disable-validation --num-workers 0 --log-format none"""
    words = [binary, *options.split(), *fairseq_arch_args(out)]
    words += ["--restore-file", out / "model.pt", "--save-dir", tmp_path / "save"]
    if reset:
        words += ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--reset-lr-scheduler"]
    monkeypatch.setattr(sys, "argv", ["fairseq-train", *map(str, words)])
    fairseq_train.cli_main()
    trained = read_fairseq_checkpoint(tmp_path / "save" / "checkpoint_last.pt")["model"]
    start = load(out)["model"]
    head = "classification_heads.sentence_classification_head."
    for name, tensor in start.items():  # the learning rate is 0: everything is as it was restored
        assert torch.equal(trained[name.replace("pooler.", head)], tensor), name
    assert trained[f"{head}out_proj.weight"].shape == (2, 32)
