"""Tiny random backbones of every kind the tests use, and a tokenizer for them."""

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    OpenAIGPTConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from sot_hf import SoTConfig, SoTForSequenceClassification

WORDS = ["the", "a", "cat", "dog", "bird", "sees", "likes", "big", "small", "not", "well", "today"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"]
ENCODER = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
ENCODER |= {"vocab_size": len(VOCAB), "max_position_embeddings": 40}
DECODER = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": len(VOCAB), "n_positions": 40}
BACKBONES = {
    "bert": lambda: BertConfig(**ENCODER),
    "roberta": lambda: RobertaConfig(**ENCODER, pad_token_id=1, type_vocab_size=1),
    "openai-gpt": lambda: OpenAIGPTConfig(**DECODER),
    "gpt2": lambda: GPT2Config(**DECODER),
    "distilbert": lambda: DistilBertConfig(
        dim=16, n_layers=2, n_heads=2, hidden_dim=24, vocab_size=len(VOCAB), max_position_embeddings=40
    ),
    "deberta-v2": lambda: DebertaV2Config(**ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "electra": lambda: ElectraConfig(**ENCODER, embedding_size=8),
}
HEAD = {"num_heads": 2, "q_dim": 4, "k_dim": 3}


def tiny_model(kind, num_labels=3, head=None, layers=2, layers_read=None, **config):
    backbone = BACKBONES[kind]()
    backbone.num_hidden_layers = layers
    config = SoTConfig(backbone, head=HEAD | (head or {}), num_labels=num_labels, layers=layers_read, **config)
    return SoTForSequenceClassification(config)


def randomize(model):
    """Weights large enough that no two models give about the same logits."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def batch(rows=6, length=9):
    """Token numbers without special ones, a mask with padding on the right, labels of three classes."""
    ids = torch.randint(5, len(VOCAB), (rows, length))
    mask = torch.ones_like(ids)
    mask[rows // 2 :, length - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(rows) % 3}


def tokenizer(**options):
    """A lower-casing WordPiece tokenizer of `VOCAB`."""
    numbers = {word: number for number, word in enumerate(VOCAB)}
    core = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names |= {"mask_token": "[MASK]", "model_max_length": 40}
    names["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=core, **names | options)
