"""XLM-R: sentencepiece models encode as in fairseq, are preprocessed, trained on and predicted with."""

import shutil
from types import SimpleNamespace

import pytest
from fairseq.data import Dictionary
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceBPE
from fairseq.models import ARCH_CONFIG_REGISTRY
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sot_fairseq
from sot_base.errors import UsageError
from sot_fairseq import preprocess
from sot_fairseq.data.header import DataHeader
from sot_fairseq.encoders import find
from sot_fairseq.models.sot_roberta import SoTRobertaModel
from sot_fairseq.tokenizers.tokenization import TextEncoder
from tests.sot_fairseq.conftest import run_train, write_rows
from tests.sot_fairseq.tokenizer_files import MERGED, NASTY, SENTENCES, tiny_sentencepiece

MULTILINGUAL = [
    *SENTENCES,
    *MERGED,
    "Les élèves n'ont pas répondu à l'appel de l'été.",
    "¿Dónde está la biblioteca? ¡Mañana será otro día!",
    "Съешь ещё этих мягких французских булок.",
    "吾輩は猫である。名前はまだ無い。",
    "敏捷的棕色狐狸跳过懒狗。",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "مرحبا بالعالم كيف حالك",
    "ﬁnal ½ cup of ＦＵＬＬ ｗｉｄｔｈ ① ㎏",  # noqa: RUF001
]
OPTIONS = {
    "xlmr": {},  # unigram, as XLM-R's: NFKC, blanks joined
    "bpe": {"model_type": "bpe"},
    "byte fallback": {"byte_fallback": True, "vocab_size": 420},
    "as it is": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_by_whitespace": False,
        "vocab_size": 250,
    },
    "no prefix": {"add_dummy_prefix": False},
}


@pytest.fixture(scope="module", params=list(OPTIONS))
def folder(request, tmp_path_factory):
    return tiny_sentencepiece(tmp_path_factory.mktemp("model"), MULTILINGUAL, **OPTIONS[request.param])


@pytest.fixture(scope="module")
def fairseq_ids(folder):
    """Encode a text with fairseq's own code."""
    model = str(folder / "sentencepiece.bpe.model")
    bpe = SentencepieceBPE(
        SimpleNamespace(sentencepiece_model=model, sentencepiece_enable_sampling=False, sentencepiece_alpha=None)
    )
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    return lambda text: dictionary.encode_line(bpe.encode(text.strip()), add_if_not_exist=False).tolist()


def ids(encoder, texts):
    return [row.tolist() for row in encoder.encode_batch(texts)]


def test_it_is_that_of_fairseq(folder, fairseq_ids):
    texts = (
        NASTY + MULTILINGUAL + [text.replace(" ", blank) for text in MULTILINGUAL for blank in ("  ", "\u3000", "▁")]
    )
    expected = [fairseq_ids(text) for text in texts]
    encoder = TextEncoder.sentencepiece(folder)
    assert ids(encoder, texts) == expected
    assert ids(encoder, texts[::-1]) == expected[::-1]
    assert [ids(encoder, [text])[0] for text in texts] == expected
    assert ids(TextEncoder.sentencepiece(folder / "sentencepiece.bpe.model"), texts) == expected
    assert any(3 in row for row in expected)  # <unk>
    assert encoder.vocab_size == len(Dictionary.load(str(folder / "dict.txt")))


@settings(
    derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.characters(codec="utf-8")) | st.text(st.sampled_from(" \t\n\r\xa0\u2028▁aét\u0301'東京½")))
def test_it_is_that_of_fairseq_for_any_text(folder, fairseq_ids, text):
    assert ids(TextEncoder.sentencepiece(folder), ["a b", text]) == [fairseq_ids("a b"), fairseq_ids(text)]


def test_of_every_unicode_block(folder, fairseq_ids):
    codes = [code for code in range(0, 0x110000, 211) if not 0xD800 <= code < 0xE000]
    texts = [f"a{chr(code)}1 {chr(code)} the" for code in codes]
    assert ids(TextEncoder.sentencepiece(folder), texts) == [fairseq_ids(text) for text in texts]


@pytest.fixture(scope="module")
def xlmr(tmp_path_factory):
    return tiny_sentencepiece(tmp_path_factory.mktemp("xlmr"), MULTILINGUAL)


def test_saved_folder_is_enough(xlmr, tmp_path):
    source = shutil.copytree(xlmr, tmp_path / "source")
    encoder = TextEncoder.sentencepiece(source)
    encoder.save(tmp_path / "saved")
    shutil.rmtree(source)
    loaded = TextEncoder.from_folder(tmp_path / "saved")
    assert ids(loaded, NASTY) == ids(encoder, NASTY)
    assert loaded.subwords.kind == "sentencepiece"
    assert (tmp_path / "saved" / "dict.txt").read_bytes() == (xlmr / "dict.txt").read_bytes()


@pytest.mark.parametrize(
    "text,message", [(None, "NoneType"), (3.5, "float"), (b"x", "bytes"), ("a \ud800", "surrogate")]
)
def test_what_is_no_text_is_an_error_with_its_row(xlmr, text, message):
    with pytest.raises(UsageError, match=f"{message}.*: row 1;"):
        TextEncoder.sentencepiece(xlmr).encode_batch(["a", text])


@pytest.mark.parametrize(
    "name,content,message",
    [
        ("sentencepiece.bpe.model", None, "no sentencepiece model: .*sentencepiece.bpe.model"),
        ("sentencepiece.bpe.model", "text", "not a sentencepiece model: .*sentencepiece.bpe.model"),
        ("sentencepiece.bpe.model", "", "not a sentencepiece model: .*sentencepiece.bpe.model"),
        ("dict.txt", None, "cannot read dict.txt"),
        ("dict.txt", "13 1\n262 2\n", r"only 0 of 2 tokens are pieces of sentencepiece.bpe.model: .*dict.txt"),
    ],
)
def test_broken_files(xlmr, tmp_path, name, content, message):
    copy = shutil.copytree(xlmr, tmp_path / "copy")
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_text(content)
    with pytest.raises(UsageError, match=message):
        TextEncoder.sentencepiece(copy)


def test_a_machine_without_the_package(xlmr, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentencepiece", None)
    with pytest.raises(UsageError, match="the package sentencepiece is not installed"):
        TextEncoder.sentencepiece(xlmr)


def test_an_xlmr_is_trained_and_predicts(xlmr, tmp_path):
    """A fairseq folder with a sentencepiece model, through preprocessing and one step of training."""
    rows = [(text, other, "ab"[row % 2]) for row, (text, other) in enumerate(zip(MULTILINGUAL, NASTY, strict=False))]
    for name in ("train", "dev"):
        write_rows(tmp_path / "tsv" / f"{name}.tsv", ("first", "second", "label"), rows)
    own = ["--text-columns", "first,second", "--label-column", "label"]
    words = [*own, "--data-dir", str(tmp_path / "tsv"), "--output-dir", str(tmp_path / "bin"), "--bpe", "sentencepiece"]
    with pytest.raises(UsageError, match="no tokenizer files: --bpe sentencepiece; give --sentencepiece-model"):
        preprocess.main(words)
    with pytest.raises(UsageError, match="--cased or --uncased with --bpe sentencepiece"):
        preprocess.main([*words, "--sentencepiece-model", str(xlmr), "--cased"])
    preprocess.main([*words, "--sentencepiece-model", str(xlmr)])
    header = DataHeader.load(tmp_path / "bin")
    assert (header.bpe, header.init_token, header.separator_token) == ("sentencepiece", 0, 2)
    assert header.vocab_file == "sentencepiece.bpe.model"
    state = run_train(tmp_path / "bin", tmp_path / "run", "--max-update", "1", arch="xlmr_base")
    assert state["cfg"]["model"].arch == "xlmr_base"
    predictor = sot_fairseq.from_pretrained(tmp_path / "run", "checkpoint_last.pt")
    assert type(predictor.model) is SoTRobertaModel
    assert predictor.predict([("Où est l'été?", "東京")])[0].label in ("a", "b")
    encoder = TextEncoder.sentencepiece(xlmr)
    first, second = ids(encoder, ["the", "é"])
    tokens = predictor._dataset([("the", "é")])[0].tolist()
    assert tokens == [0, *first, 2, *second]  # <s> a </s> </s> b </s>

    published = shutil.copytree(xlmr, tmp_path / "xlmr.base")
    shutil.copyfile(tmp_path / "run" / "checkpoint_last.pt", published / "model.pt")
    found = find(str(published))
    assert (found.bpe, found.tokenizer, found.dictionary) == ("sentencepiece", published, published / "dict.txt")
    assert found.token_args == ["--init-token", "0", "--separator-token", "2"]
    assert found.preprocess_args == ["--bpe", "sentencepiece", "--sentencepiece-model", str(published)]
    assert found.arch_args[:4] == ["--arch", "xlmr_base", "--encoder-layers", "1"]
    preprocess.main([*words[:-2], *found.preprocess_args])
    (published / "dict.txt").write_text("13 1\n262 2\n")
    with pytest.raises(UsageError, match="only 0 of 2 tokens are pieces"):
        find(str(published))


@pytest.mark.parametrize("arch,sizes", [("xlmr_base", (12, 768, 3072, 12)), ("xlmr_large", (24, 1024, 4096, 16))])
def test_architectures_are_the_published_shapes(arch, sizes):
    args = SimpleNamespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    assert tuple(getattr(args, name) for name in names) == sizes
    assert args.max_positions == 512
    assert not args.encoder_normalize_before
    stock = SimpleNamespace()
    ARCH_CONFIG_REGISTRY[arch.replace("xlmr", "roberta")](stock)
    assert {**vars(stock), "max_positions": 512} == vars(args)
