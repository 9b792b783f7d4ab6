import copy

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2LMHeadModel,
    pipeline,
)

from sot_base.errors import UsageError
from sot_core.build import FUSIONS, NORMALIZATIONS, POOLINGS
from sot_core.layer_pair import join_layers
from sot_hf import SoTConfig, SoTForSequenceClassification
from tests.sot_hf.models import BACKBONES, ENCODER, HEAD, batch, randomize, tiny_model, tokenizer

DECODERS = ("openai-gpt", "gpt2")


def logits_of(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits


def without_gradient(model):
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize("kind", BACKBONES)
def test_trains_saves_and_loads(kind, tmp_path):
    model = tiny_model(kind).train()
    rows = batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(6):
        loss = model(**rows).loss
        optimizer.zero_grad()
        loss.backward()
        assert without_gradient(model) == []
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    assert kind in (tmp_path / "README.md").read_text()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(loaded, SoTForSequenceClassification)
    assert loaded.config.head == model.config.head
    assert_close(logits_of(loaded, **rows), logits_of(model.eval(), **rows), rtol=0, atol=0)


@pytest.mark.parametrize("save", [{}, {"max_shard_size": "5KB"}])
def test_a_flipped_bit_in_the_weights_is_found(save, tmp_path):
    model = randomize(tiny_model("bert"))
    model.save_pretrained(tmp_path, **save)
    SoTForSequenceClassification.from_pretrained(tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert (len(files) > 1) == bool(save)
    content = bytearray(files[-1].read_bytes())
    content[-2] ^= 1
    files[-1].write_bytes(content)
    with pytest.raises(UsageError, match=rf"checksum differs\): .*{files[-1].name}; get or save it again"):
        SoTForSequenceClassification.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", BACKBONES)
def test_alone_and_padded_score_the_same(kind):
    model = randomize(tiny_model(kind))
    rows = batch(rows=2, length=6)["input_ids"]
    alone = logits_of(model, input_ids=rows)
    for pads in (1, 7):
        filler = torch.randint(5, 12, (2, pads))
        mask = torch.cat([torch.ones_like(rows), torch.zeros_like(filler)], dim=1)
        padded = torch.cat([rows, filler], dim=1)
        assert_close(logits_of(model, input_ids=padded, attention_mask=mask), alone, rtol=0, atol=1e-5)
        if kind in DECODERS:
            padded, mask = torch.cat([filler, rows], dim=1), mask.flip(1)
            assert_close(logits_of(model, input_ids=padded, attention_mask=mask), alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_rows_without_words_are_finite(kind):
    model = randomize(tiny_model(kind)).train()
    rows = batch(rows=3, length=5)
    rows["attention_mask"][0] = 0
    rows["attention_mask"][1, 1:] = 0
    loss = model(**rows).loss
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    single = logits_of(model.eval(), input_ids=rows["input_ids"][:1, :1])
    assert single.isfinite().all()


def test_a_decoders_class_token_is_the_last_valid_one():
    model = randomize(tiny_model("gpt2", head={"fusion": "cls"}))
    rows = batch(rows=4, length=7)
    changed = rows["input_ids"].clone()
    changed[0, 6] = 5 + (changed[0, 6] - 4) % 12
    changed[3, 6] = 5 + (changed[3, 6] - 4) % 12  # padding
    before = logits_of(model, **rows)
    after = logits_of(model, input_ids=changed, attention_mask=rows["attention_mask"])
    assert (before[0] - after[0]).abs().max() > 1e-3
    assert_close(before[3], after[3])


def test_token_types_reach_backbones_that_have_them():
    rows = batch(rows=2)
    types = (torch.arange(9) > 4).long().expand(2, -1)
    bert, distilbert = randomize(tiny_model("bert")), randomize(tiny_model("distilbert"))
    plain, typed = logits_of(bert, **rows), logits_of(bert, **rows, token_type_ids=types)
    assert (plain - typed).abs().max() > 1e-3
    assert_close(logits_of(distilbert, **rows, token_type_ids=types), logits_of(distilbert, **rows))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion(fusion, tmp_path):
    model = randomize(tiny_model("bert", head={"fusion": fusion})).train()
    rows = batch()
    model(**rows).loss.backward()
    assert without_gradient(model) == []
    model.eval().save_pretrained(tmp_path)
    loaded = SoTForSequenceClassification.from_pretrained(tmp_path)
    assert_close(logits_of(loaded, **rows), logits_of(model, **rows), rtol=0, atol=0)


def test_sum_loss_adds_the_losses_of_both_classifiers():
    model = randomize(tiny_model("bert", head={"fusion": "sum_loss"}, freeze_backbone=True)).train()
    model.classifier.cls_drop.p = 0.0
    rows = batch()
    output = model(**rows)
    parts = model.contributions(rows["input_ids"], rows["attention_mask"])
    expected = sum(torch.nn.functional.cross_entropy(part, rows["labels"]) for part in parts)
    assert_close(output.loss, expected)
    assert_close(output.logits, parts.cls + parts.word)


@pytest.mark.parametrize(
    "pooling, normalization",
    [*[(name, "svpn") for name in POOLINGS if name != "mgcrp"], *[("mgcrp", n) for n in NORMALIZATIONS]],
)
def test_loaded_heads_have_their_buffers_and_start_values(pooling, normalization, tmp_path):
    head = {"pooling": pooling, "normalization": normalization, "projection": "batch_norm_relu", "gcp_iters": 2}
    head |= {"feature_norm": "batch_norm", "head_norm": "layer_norm", "num_heads": 2, "num_queries": 4}
    model = randomize(tiny_model("bert", head=head))
    model.save_pretrained(tmp_path)
    loaded = SoTForSequenceClassification.from_pretrained(tmp_path)
    for saved, restored in ((model.parameters(), loaded.parameters()), (model.buffers(), loaded.buffers())):
        for tensor, other in zip(saved, restored, strict=True):
            assert_close(other, tensor, rtol=0, atol=0)
    rows = batch()
    # kernels may round by where an array lies in memory
    assert_close(logits_of(loaded, **rows), logits_of(model, **rows), rtol=1e-5, atol=1e-5)


def test_regression_and_several_labels():
    rows = batch()
    model = tiny_model("bert", num_labels=1).eval()
    output = model(**rows | {"labels": torch.linspace(0, 5, 6)})
    assert_close(output.loss, (output.logits[:, 0] - torch.linspace(0, 5, 6)).square().mean())
    model = tiny_model("bert", problem_type="multi_label_classification").eval()
    labels = torch.nn.functional.one_hot(rows["labels"], 3)
    output = model(**rows | {"labels": labels})
    expected = torch.nn.functional.binary_cross_entropy_with_logits(output.logits, labels.float())
    assert_close(output.loss, expected)


def test_tuple_and_hidden_states():
    model, rows = tiny_model("bert").eval(), batch()
    loss, logits = model(**rows, return_dict=False)
    assert loss.dim() == 0
    assert logits.shape == (6, 3)
    assert len(model(**rows, output_hidden_states=True).hidden_states) == 3


def test_frozen_backbone():
    model = tiny_model("bert", freeze_backbone=True).train()
    assert not model.backbone.training
    model(**batch()).loss.backward()
    names = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert names == {"classifier"}
    assert without_gradient(model) == []
    model.freeze_backbone(False)
    assert model.backbone.training
    model(**batch()).loss.backward()
    assert without_gradient(model) == []


def test_parameters_of_a_frozen_backbone_that_are_to_learn_do_learn():
    model = tiny_model("bert", freeze_backbone=True).train()
    word = model.get_input_embeddings().weight.requires_grad_(True)
    assert model.train().backbone.training
    model(**batch()).loss.backward()
    assert word.grad.abs().sum() > 0
    word.requires_grad_(False)
    embeddings = torch.randn(2, 5, 16, requires_grad=True)  # as attributions do
    model.train()(inputs_embeds=embeddings).logits.sum().backward()
    assert not model.backbone.training
    assert embeddings.grad.abs().sum() > 0


def test_a_plain_bert_gets_a_head_that_starts_from_its_pooler(tmp_path):
    backbone = randomize(BertModel(BertConfig(**ENCODER)))
    backbone.save_pretrained(tmp_path)
    model = SoTForSequenceClassification.from_pretrained(tmp_path, num_labels=3, head=HEAD)
    assert model.backbone.pooler is None
    assert_close(model.classifier.dense.weight, backbone.pooler.dense.weight)
    rows = batch()
    with torch.no_grad():
        tokens = backbone(rows["input_ids"], rows["attention_mask"]).last_hidden_state
        expected = model.classifier(tokens, rows["attention_mask"].eq(0))
    assert_close(logits_of(model, **rows), expected)
    config = SoTConfig(BertConfig(**ENCODER), head={"fusion": "words"}, num_labels=4)
    model = SoTForSequenceClassification.from_pretrained(tmp_path, config=config)
    assert logits_of(model, **rows).shape == (6, 4)
    with pytest.raises(TypeError, match="num_labels beside config"):
        SoTForSequenceClassification.from_pretrained(tmp_path, config=config, num_labels=4)


@pytest.mark.parametrize("plain", [BertForMaskedLM(BertConfig(**ENCODER)), GPT2LMHeadModel(BACKBONES["gpt2"]())])
def test_a_language_model_gets_a_head(plain, tmp_path):
    randomize(plain).save_pretrained(tmp_path)
    model, info = SoTForSequenceClassification.from_pretrained(
        tmp_path, id2label={0: "no", 1: "yes"}, output_loading_info=True
    )
    assert model.config.label2id == {"no": 0, "yes": 1}
    assert not [key for key in info["missing_keys"] if "pooler" not in key]
    inner = plain.base_model.state_dict()
    assert all(torch.equal(value, inner[key]) for key, value in model.backbone.state_dict().items())


def test_half_precision_weights_get_a_head_of_their_dtype(tmp_path):
    BertModel(BertConfig(**ENCODER)).to(torch.bfloat16).save_pretrained(tmp_path)
    model = SoTForSequenceClassification.from_pretrained(tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert logits_of(model, **batch() | {"labels": torch.zeros(6).long()}).isfinite().all()


def test_incomplete_weights_and_other_models_are_refused(tmp_path):
    BertModel(BertConfig(**ENCODER)).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(BertConfig(**ENCODER | {"num_hidden_layers": 3}).to_json_string())
    with pytest.raises(UsageError, match=r"lack 16 of its tensors \(encoder.layer.2"):
        SoTForSequenceClassification.from_pretrained(tmp_path)
    BartConfig().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="'bart' is both"):
        SoTForSequenceClassification.from_pretrained(tmp_path)


def test_auto_class_builds_from_a_configuration():
    config = SoTConfig(BertConfig(**ENCODER), head=HEAD, num_labels=4)
    model = AutoModelForSequenceClassification.from_config(config)
    assert logits_of(model, **batch()).shape == (6, 4)


def test_config_refuses_what_no_head_has():
    with pytest.raises(ValueError, match="did you mean 'pooling'"):
        SoTConfig(head={"poolin": "mgcrp"})
    with pytest.raises(ValueError, match="Unknown cls_position 'middle'"):
        SoTConfig(cls_position="middle")


def test_published_dictionary():
    config = SoTConfig(BertConfig(**ENCODER), head={"MGCrP_q": 6, "MGCrP_k": 5, "MGCrP_dp": 0.8})
    head = config.head_config()
    assert (head.num_heads, head.q_dim, head.k_dim, head.drop_rate) == (1, 6, 5, 0.8)
    assert head.cls_pooler_drop_rate == pytest.approx(0.1)


def test_other_number_of_labels_is_an_error_or_a_new_classifier(tmp_path):
    tiny_model("bert").save_pretrained(tmp_path)
    with pytest.raises(
        UsageError, match=r"4 tensors have other shapes .*out_proj.bias \[3\] -> \[2\].*ignore_mismatched"
    ):
        SoTForSequenceClassification.from_pretrained(tmp_path, num_labels=2)
    model = SoTForSequenceClassification.from_pretrained(tmp_path, num_labels=2, ignore_mismatched_sizes=True)
    assert logits_of(model, input_ids=batch()["input_ids"]).shape == (6, 2)


def test_gradient_checkpointing_gives_the_same_gradients():
    model = tiny_model("bert").eval()
    other = copy.deepcopy(model)
    other.gradient_checkpointing_enable()
    rows = batch()
    model(**rows).loss.backward()
    other.train()
    for module in other.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for layer in other.backbone.encoder.layer:
        layer.attention.self.dropout.p = 0.0
    other(**rows).loss.backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert_close(mine.grad, theirs.grad)


def test_sdpa_and_eager_agree(tmp_path):
    randomize(tiny_model("bert")).save_pretrained(tmp_path)
    rows = batch()
    outputs = []
    for name in ("sdpa", "eager"):
        model = SoTForSequenceClassification.from_pretrained(tmp_path, attn_implementation=name)
        assert model.backbone.config._attn_implementation == name
        outputs.append(logits_of(model, **rows))
    assert_close(*outputs)


def test_compiles():
    model, rows = randomize(tiny_model("gpt2")), batch()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(**rows).logits, model(**rows).logits)


def test_pipeline(tmp_path):
    randomize(tiny_model("bert", id2label={0: "bad", 1: "good", 2: "odd"})).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    classify = pipeline("text-classification", model=str(tmp_path), device="cpu")
    texts = ["the cat sees a dog", "a bird", "not well"]
    together = classify(texts, batch_size=3)
    assert {answer["label"] for answer in together} <= {"bad", "good", "odd"}
    for text, answer in zip(texts, together, strict=True):
        assert classify(text)[0]["score"] == pytest.approx(answer["score"], abs=1e-5)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "deberta-v2"])
@pytest.mark.parametrize("layers", [[0], [1], [2], [0, 1, 2]])
def test_the_head_reads_the_layers_that_are_named(kind, layers, tmp_path):
    model = randomize(tiny_model(kind, layers_read=layers))
    rows = batch()
    tokens = {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}
    with torch.no_grad():
        outputs = model.backbone(**tokens, output_hidden_states=True)
        states = [*outputs.hidden_states[:-1], outputs.last_hidden_state]
        chosen = [states[layer] for layer in layers]
        read = chosen[0] if len(chosen) == 1 else model.layer_mix(chosen)
        expected = model.classifier(*model.class_token_first(read, tokens["attention_mask"]))
    assert_close(logits_of(model, **tokens), expected)
    assert model(**tokens).hidden_states is None
    assert len(model(**tokens, output_hidden_states=True).hidden_states) == 3
    assert model.config.layers == (None if layers == [2] else layers)
    model.train()(**rows).loss.backward()
    assert not [name for name in without_gradient(model) if name.startswith(("classifier", "layer_mix"))]
    model.save_pretrained(tmp_path)
    assert_close(logits_of(AutoModelForSequenceClassification.from_pretrained(tmp_path), **tokens), expected)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize("pair", ["words_cls", "x_y"])
def test_the_head_reads_a_pair_of_layers(kind, pair, tmp_path):
    model, rows = randomize(tiny_model(kind, layers_read=[1, 2], layer_pair=pair)), batch()
    tokens = {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}
    with torch.no_grad():
        outputs = model.backbone(**tokens, output_hidden_states=True)
    one = tiny_model(kind)  # a model of one layer, to order the tokens
    first, padding = one.class_token_first(outputs.hidden_states[1], tokens["attention_mask"])
    second, _ = one.class_token_first(outputs.last_hidden_state, tokens["attention_mask"])
    with torch.no_grad():
        expected = model.classifier(join_layers(pair, first, second), padding)
    assert_close(logits_of(model, **tokens), expected)
    model.train()(**rows).loss.backward()
    assert not [name for name in without_gradient(model) if name.startswith("classifier")]
    model.save_pretrained(tmp_path)
    assert_close(logits_of(AutoModelForSequenceClassification.from_pretrained(tmp_path), **tokens), expected)


@pytest.mark.parametrize(
    "layers, pair, message",
    [
        ([1], "x_y", "layer_pair='x_y' needs two layers, got"),
        (None, "words_cls", "layer_pair='words_cls' needs two layers, got None"),
        ([1, 2], "y_x", "Unknown layer_pair 'y_x'"),
    ],
)
def test_pairs_of_layers_that_do_not_fit(layers, pair, message):
    with pytest.raises(ValueError, match=message):
        tiny_model("bert", layers_read=layers, layer_pair=pair)


@pytest.mark.parametrize("layers", [[], [3], [-1], [1, 1], ["1"], 1])
def test_layers_that_are_not_there(layers):
    with pytest.raises(ValueError, match="layers must be different numbers from 0 to 2, got"):
        tiny_model("bert", layers_read=layers)
