"""Both sides are imported here, and only here: a converted classifier gives the same logits on the other side."""

import json
import random

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import sot_fairseq
from sot_base.errors import UsageError
from sot_base.safe_checkpoint import read_checkpoint
from sot_fairseq import preprocess
from sot_hf.convert import convert, main
from tests.sot_fairseq.conftest import preprocess_folder, run_train, sentence, write_rows
from tests.sot_fairseq.tokenizer_files import tiny_gpt2
from tests.sot_hf.models import randomize, tiny_model, tokenizer

PAIRS = [("the cat sees", "a dog likes the bird"), ("not well", "today"), ("big", "the small cat sees a dog")]
PAIRS += [("the [SEP]", "a </s>"), ("<s> dog", "[MASK]")]  # text, not the tokens of these names


def hugging_face_logits(folder, rows):
    model, encode = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    columns = [list(column) for column in zip(*rows, strict=True)]
    with torch.no_grad():
        return model(**encode(*columns, padding=True, return_tensors="pt")).logits


def shake(checkpoint, path):
    """Large random weights instead of those of a short training, so that a mistake shows."""
    for name, tensor in checkpoint["model"].items():
        if tensor.is_floating_point() and tensor.numel() and "version" not in name:
            tensor += 0.1 * torch.randn_like(tensor)
    words = checkpoint["model"]["encoder.sentence_encoder.embed_tokens.weight"]
    checkpoint["model"]["encoder.lm_head.weight"] = words
    torch.save(checkpoint, path)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    rng = random.Random(4)
    for name, count in (("train", 24), ("dev", 7)):
        rows = [(sentence(rng), sentence(rng), rng.choice(["yes", "no", "maybe"])) for _ in range(count)]
        write_rows(folder / f"{name}.tsv", ("first", "second", "label"), rows)
    return folder


@pytest.fixture(scope="module")
def bert_data(tables, tmp_path_factory):
    columns = ("--text-columns", "first,second", "--label-column", "label")
    return preprocess_folder(tables, tmp_path_factory.mktemp("bert") / "bin", *columns)


@pytest.fixture(scope="module")
def roberta_data(tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roberta")
    files = tiny_gpt2(folder / "bpe")
    the = json.loads((files / "encoder.json").read_text(encoding="utf-8"))["Ġthe"]  # a complete dictionary has it
    with (files / "dict.txt").open("a") as dictionary:
        dictionary.write(f"{the} 1\n")
    arguments = ["--data-dir", tables, "--output-dir", folder / "bin", "--bpe", "gpt2", "--gpt2-bpe-dir", files]
    arguments += ["--text-columns", "first,second", "--label-column", "label"]
    preprocess.main([str(argument) for argument in arguments])
    return folder / "bin"


@pytest.mark.parametrize(
    "head",
    [
        *("--head-fusion sum_fc", "--head-fusion words", "--head-fusion cls", "--head-fusion concat"),
        "--head-fusion cls --head-feature-norm batch_norm",
        "--head-projection batch_norm_relu --head-normalization learnable_scale",
        "--head-pooling attention --attention-mlp --head-feature-norm batch_norm",
    ],
)
def test_bert_there_and_back(head, bert_data, tmp_path):
    more = (*head.split(), "--max-update", "1", "--mgcrp-center", "none")
    shake(run_train(bert_data, tmp_path / "fs", *more, arch="sot_bert_base"), tmp_path / "fs" / "checkpoint_last.pt")
    (tmp_path / "fs" / "checkpoint_best.pt").unlink(missing_ok=True)
    expected = sot_fairseq.from_pretrained(tmp_path / "fs")
    logits = expected.logits(PAIRS)
    convert(tmp_path / "fs", tmp_path / "hf")
    assert_close(hugging_face_logits(tmp_path / "hf", PAIRS), logits, rtol=0, atol=1e-4)
    main([str(tmp_path / "hf"), "--output_dir", str(tmp_path / "back")])
    back = sot_fairseq.from_pretrained(tmp_path / "back")
    assert back.labels == expected.labels
    assert_close(back.logits(PAIRS), logits, rtol=0, atol=1e-4)
    trained, again = expected.model.state_dict(), back.model.state_dict()
    for key, value in trained.items():
        if "lm_head" not in key and not key.endswith("version"):
            used = slice(2, None) if "embed_positions" in key else ...  # without fairseq's unused rows
            assert torch.equal(value[used], again[key][used]), key


def test_roberta_there_and_back(roberta_data, tmp_path):
    shake(run_train(roberta_data, tmp_path / "fs", "--max-update", "1"), tmp_path / "fs" / "checkpoint_last.pt")
    (tmp_path / "fs" / "checkpoint_best.pt").unlink(missing_ok=True)
    expected = sot_fairseq.from_pretrained(tmp_path / "fs")
    logits = expected.logits(PAIRS)
    convert(tmp_path / "fs", tmp_path / "hf")
    assert_close(hugging_face_logits(tmp_path / "hf", PAIRS), logits, rtol=0, atol=1e-4)
    convert(tmp_path / "hf", tmp_path / "back")
    assert_close(sot_fairseq.from_pretrained(tmp_path / "back").logits(PAIRS), logits, rtol=0, atol=1e-4)


def test_regression_from_hugging_face(tmp_path):
    randomize(tiny_model("bert", num_labels=1, problem_type="regression")).save_pretrained(tmp_path / "hf")
    tokenizer(split_special_tokens=True).save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "fs")
    found = sot_fairseq.from_pretrained(tmp_path / "fs")
    assert found.regression
    assert_close(found.logits(PAIRS), hugging_face_logits(tmp_path / "hf", PAIRS), rtol=0, atol=1e-4)


def test_several_labels_there_and_back(tmp_path):
    rng = random.Random(6)
    for name, count in (("train", 20), ("dev", 7)):
        rows = [(sentence(rng), sentence(rng), rng.choice(["a", "a,b", "", "c"])) for _ in range(count)]
        write_rows(tmp_path / f"{name}.tsv", ("first", "second", "labels"), rows)
    columns = ("--text-columns", "first,second", "--label-column", "labels", "--multi-label")
    data = preprocess_folder(tmp_path, tmp_path / "bin", *columns)
    best = ("--best-checkpoint-metric", "f1_micro", "--maximize-best-checkpoint-metric", "--max-update", "1")
    shake(run_train(data, tmp_path / "fs", *best, arch="sot_bert_base"), tmp_path / "fs" / "checkpoint_best.pt")
    expected = sot_fairseq.from_pretrained(tmp_path / "fs").predict(PAIRS)
    convert(tmp_path / "fs", tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    probabilities = hugging_face_logits(tmp_path / "hf", PAIRS).sigmoid()
    assert_close(probabilities, torch.tensor([list(p.probabilities.values()) for p in expected]), rtol=0, atol=1e-4)
    convert(tmp_path / "hf", tmp_path / "back")
    found = sot_fairseq.from_pretrained(tmp_path / "back")
    assert found.multi_label
    assert [prediction.label for prediction in found.predict(PAIRS)] == [prediction.label for prediction in expected]


def test_a_checkpoint_that_is_not_whole_or_has_another_vocabulary(tmp_path):
    randomize(tiny_model("bert")).save_pretrained(tmp_path / "hf")
    tokenizer().save_pretrained(tmp_path / "hf")
    source = convert(tmp_path / "hf", tmp_path / "fs")
    state = read_checkpoint(source / "checkpoint_best.pt", lazy=False)
    for name, message in (
        ("layers.1.self_attn.q_proj.weight", "1 encoder tensors are missing"),
        ("embed_positions.weight", "an incomplete encoder: the checkpoint lacks .*embed_positions"),
    ):
        tensors = {key: value for key, value in state["model"].items() if not key.endswith(f"encoder.{name}")}
        torch.save({**state, "model": tensors}, source / "checkpoint_best.pt")
        with pytest.raises(UsageError, match=message):
            convert(source, tmp_path / "out")
    torch.save(state, source / "checkpoint_best.pt")
    vocab = source / "tokenizer" / "vocab.txt"
    text = vocab.read_text()
    vocab.write_text("".join(reversed(text.splitlines(keepends=True))))
    with pytest.raises(UsageError, match=r"vocab.txt and dict.txt are of different vocabularies"):
        convert(source, tmp_path / "out")
    vocab.write_text(text + "more\n")
    (source / "tokenizer" / "dict.txt").unlink()
    with pytest.raises(UsageError, match="the vocabulary has 19 entries and the embedding 18 rows"):
        convert(source, tmp_path / "out")


def test_what_cannot_be_converted(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="give the --save-dir of a training"):
        convert(tmp_path / "empty", tmp_path / "out")
    tiny_model("gpt2").save_pretrained(tmp_path / "gpt2")
    with pytest.raises(UsageError, match="a gpt2 where a BERT or RoBERTa with a head is expected"):
        convert(tmp_path / "gpt2", tmp_path / "out")
    with pytest.raises(UsageError, match="the output folder is not empty"):
        convert(tmp_path / "gpt2", tmp_path / "gpt2")
    tiny_model("bert", layers_read=[1]).save_pretrained(tmp_path / "first")
    with pytest.raises(UsageError, match=r"fairseq's head reads the last layer, this one \[1\]"):
        convert(tmp_path / "first", tmp_path / "out")
    tiny_model("bert", head={"cls_pooler_dim": 5}).save_pretrained(tmp_path / "narrow")
    tokenizer().save_pretrained(tmp_path / "narrow")
    with pytest.raises(UsageError, match="dense layer is 5 wide, the encoder 16"):
        convert(tmp_path / "narrow", tmp_path / "out")
    tiny_model("bert", id2label={0: "a", 1: "a", 2: "<s>"}).save_pretrained(tmp_path / "labels")
    tokenizer().save_pretrained(tmp_path / "labels")
    with pytest.raises(UsageError, match="'a' is repeated"):
        convert(tmp_path / "labels", tmp_path / "out")
    (tmp_path / "labels" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "labels" / "config.json").write_text((tmp_path / "narrow" / "config.json").read_text())
    with pytest.raises(UsageError, match="cannot load the weights"):
        convert(tmp_path / "labels", tmp_path / "out")
    torch.save({"model": {"encoder.sentence_encoder.x": torch.zeros(1)}, "cfg": {"task": {}}}, tmp_path / "other.pt")
    with pytest.raises(UsageError, match="no classifier of this toolkit"):
        convert(tmp_path / "other.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists()
