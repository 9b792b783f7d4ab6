"""--moses-detokenize: tokenized text becomes plain text, in preprocessing and in prediction alike."""

import io
import json
import sys

import pytest

import sot_fairseq
from sot_base.errors import UsageError
from sot_fairseq import predict, preprocess
from sot_fairseq.data.header import HEADER, DataHeader
from sot_fairseq.tokenizers.detokenize import MosesDetokenizer
from sot_fairseq.tokenizers.tokenization import TextEncoder
from tests.sot_fairseq.conftest import preprocess_folder, run_train, write_rows
from tests.sot_fairseq.tokenizer_files import tiny_gpt2

LINES = {  # as in SST-2's files, and as they are read
    "it 's a charming and often affecting journey . ": "it's a charming and often affecting journey.",
    "that loves its characters and communicates something rather beautiful about human nature ": (
        "that loves its characters and communicates something rather beautiful about human nature"
    ),
    "you do n't need to know your ice-t 's from your cool-j 's , really ": (
        "you don't need to know your ice-t's from your cool-j's, really"
    ),
    "it ca n't , WO N'T and IS N'T !": "it can't, WON'T and ISN'T!",
    "a `` really good '' film ( of 2001 ) ?": 'a "really good" film (of 2001)?',
    "-lrb- and -RRB- are brackets": "(and) are brackets",
    "we 'll see ; they 've 50 % and $ 5": "we'll see; they've 50% and $5",
    "n't": "n't",
    "": "",
    "   ": "",
    "Plain text, which isn't tokenized, stays.": "Plain text, which isn't tokenized, stays.",
    "naïve café , 東京 .": "naïve café, 東京.",
}


@pytest.mark.parametrize("tokenized, plain", list(LINES.items()))
def test_treebank_text(tokenized, plain):
    assert MosesDetokenizer()(tokenized) == plain


def test_a_machine_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UsageError, match="the package sacremoses is not installed: --moses-detokenize"):
        MosesDetokenizer()


def test_the_encoder_treats_every_text(tmp_path):
    folder = tiny_gpt2(tmp_path)
    plain, detokenizing = TextEncoder.gpt2(folder), TextEncoder.gpt2(folder, moses_detokenize=True)
    assert (plain.moses_detokenize, detokenizing.moses_detokenize) == (False, True)
    found = [row.tolist() for row in detokenizing.encode_batch(list(LINES))]
    assert found == [row.tolist() for row in plain.encode_batch(list(LINES.values()))]
    assert found != [row.tolist() for row in plain.encode_batch(list(LINES))]
    with pytest.raises(UsageError, match="NoneType where a text is expected: row 1"):
        detokenizing.encode_batch(["a", None])


def write_sst2(folder, texts):
    for name in ("train", "dev"):
        write_rows(
            folder / f"{name}.tsv", ("sentence", "label"), [(text, str(row % 2)) for row, text in enumerate(texts)]
        )
    return folder


def gpt2_preprocess(source, output, bpe, *words):
    files = ["--data-dir", str(source), "--output-dir", str(output), "--gpt2-bpe-dir", str(bpe)]
    preprocess.main(["--task", "SST-2", "--bpe", "gpt2", *files, *words])
    return output


def test_training_and_prediction_see_the_same_text(tmp_path, monkeypatch, capsys):
    bpe = tiny_gpt2(tmp_path / "bpe")
    tokenized, plain = write_sst2(tmp_path / "tokenized", LINES), write_sst2(tmp_path / "plain", LINES.values())
    data = gpt2_preprocess(tokenized, tmp_path / "moses", bpe, "--moses-detokenize")
    other = gpt2_preprocess(plain, tmp_path / "data", bpe)
    for name in ("train.bin", "train.idx", "valid.bin", "valid.idx"):
        assert (data / "input0" / name).read_bytes() == (other / "input0" / name).read_bytes()
    assert DataHeader.load(data).moses_detokenize
    assert not DataHeader.load(other).moses_detokenize

    run_train(data, tmp_path / "run", "--max-update", "2", "--lr", "0.05")
    predictor = sot_fairseq.from_pretrained(tmp_path / "run", "checkpoint_last.pt")
    assert predictor.encoder.moses_detokenize
    logits = predictor.logits(list(LINES))
    assert logits.tolist() == predictor.logits(list(LINES.values())).tolist()
    assert logits.tolist() == predictor._logits_of(_tokens(predictor, data), 64).tolist()
    with pytest.raises(UsageError, match=r"trained with --moses-detokenize, the data were made otherwise: .*data;"):
        predictor.evaluate(other)

    outputs = []
    for texts in (LINES, LINES.values()):
        text = "".join(f"{line}\n" for line in texts)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        capsys.readouterr()
        predict.main([str(tmp_path / "run")])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == len(LINES)


def _tokens(predictor, data):
    return predictor.task_for(data).load_dataset("valid").dataset.defn["net_input.src_tokens"].dataset


def test_headers_of_older_versions_are_read(data):
    content = json.loads((data / HEADER).read_text())
    assert content.pop("moses_detokenize") is False
    header = DataHeader.load(data)
    old = data.parent / "old"
    old.mkdir()
    (old / HEADER).write_text(json.dumps(content))
    assert DataHeader.load(old) == header


def test_word_pieces_too(corpus, tmp_path):
    columns = ("--text-columns", "sentence", "--label-column", "label")
    folder = preprocess_folder(corpus, tmp_path / "bin", *columns, "--moses-detokenize")
    assert DataHeader.load(folder).moses_detokenize
