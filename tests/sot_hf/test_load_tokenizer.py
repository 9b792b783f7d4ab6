"""Tokenizers as commands load them."""

import shutil

import pytest
from transformers import AutoTokenizer, BertTokenizer

from sot_base.errors import UsageError
from sot_hf.fairseq_tokenizer import bert_tokenizer, save_bert_files
from sot_hf.load_tokenizer import load_tokenizer
from tests.sot_hf.models import VOCAB, tiny_model, tokenizer


@pytest.fixture
def folder(tmp_path):
    tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("file, content", [("tokenizer.json", "{}"), ("tokenizer_config.json", "[]")])
def test_tokenizers_that_are_none(file, content, folder):
    (folder / file).write_text(content)
    with pytest.raises(UsageError, match="cannot load the tokenizer"):
        load_tokenizer(str(folder), tiny_model("bert"))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_special_tokens_in_a_text_are_text(kind, folder, tmp_path):
    """Else a text could forge the border of a pair; it holds after saving, too, where others load the tokenizer."""
    model = tiny_model(kind)
    if kind == "gpt2":  # gets start, delimiter and end
        tokenizer(pad_token=None, cls_token=None, sep_token=None, mask_token=None).save_pretrained(folder)
    loaded = load_tokenizer(str(folder), model)
    loaded.save_pretrained(tmp_path / "saved")
    for each in (loaded, AutoTokenizer.from_pretrained(tmp_path / "saved")):
        special = {each.cls_token_id, each.sep_token_id}
        for text in (f"the cat {each.sep_token} a dog", f"{each.cls_token} today [MASK]"):
            ids = each(text, text, add_special_tokens=False)["input_ids"]
            assert len(ids) > 8
            assert not special & set(ids)
            assert special <= set(each(text, text)["input_ids"])


CASED = [*VOCAB[:5], "The", "the", "cat", "Cat", "cafe"]
TEXT = "THE Cat the café"


def save_cased(folder, kind):
    """A cased BERT: as older models are, or with what transformers saves today."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(CASED) + "\n")
    if kind == "today":
        BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=False).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["older", "today"])
def test_lower_case_by_force(tmp_path, kind, caplog):
    folder, model = save_cased(tmp_path / "bert", kind), tiny_model("bert")
    model.config.backbone.save_pretrained(folder)
    expected = BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True)(TEXT)["input_ids"]
    plain = load_tokenizer(str(folder), model, do_lower_case=True)
    assert "--do_lower_case is ignored, text keeps its case; --force_lower_case lower-cases it" in caplog.text
    assert plain(TEXT)["input_ids"] != expected
    caplog.clear()
    forced = load_tokenizer(str(folder), model, do_lower_case=True, force_lower_case=True)
    assert "ignored" not in caplog.text
    forced.save_pretrained(tmp_path / "saved")
    model.config.backbone.save_pretrained(tmp_path / "saved")
    again = (load_tokenizer(str(tmp_path / "saved"), model), AutoTokenizer.from_pretrained(tmp_path / "saved"))
    for each in (forced, *again):
        assert each(TEXT)["input_ids"] == expected
    (tmp_path / "fairseq").mkdir()
    save_bert_files(tmp_path / "saved", tmp_path / "fairseq", tmp_path / "dict.txt")
    assert bert_tokenizer(tmp_path / "fairseq", 20)(TEXT)["input_ids"] == expected


def test_lower_case_by_force_is_for_word_pieces(folder):
    loaded = tokenizer()
    loaded.backend_tokenizer.normalizer = None
    loaded.save_pretrained(folder)
    with pytest.raises(UsageError, match=r"not BERT's word pieces, .*: --force_lower_case and .*; leave it out"):
        load_tokenizer(str(folder), tiny_model("bert"), force_lower_case=True)


def test_a_vocabulary_that_is_larger_than_the_model(bert_folder, tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "vocab.txt").write_text("\n".join([*VOCAB, "more"]) + "\n")
    shutil.copy(bert_folder / "config.json", tmp_path / "large")
    with pytest.raises(UsageError, match="the tokenizer has 19 tokens, the model 18"):
        load_tokenizer(str(tmp_path / "large"), tiny_model("bert"))
