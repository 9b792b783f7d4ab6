"""HVT with a class token: the comparison with average pooling. It is classified and not pooled."""

import json

import pytest
import timm
import torch
from torch import nn

import vision
from sot_base.errors import UsageError
from tests.vision.conftest import load, make_split, rows
from tests.vision.models.test_hvt import QUICK, TINY, build
from vision import train, validate


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("width, left", [(0, [64] * 4), (12, [31] * 4), (2, [31, 31, 15, 15]), (1, [31, 15, 7, 3])])
def test_the_patches_alone_are_pooled(width, left):
    model, x = build(class_token=True, pool_block_width=width), torch.randn(2, 3, 64, 64)
    tokens = model.forward_intermediates(x, output_fmt="NLC", intermediates_only=True, return_prefix_tokens=True)
    assert [(patches.shape[1], prefix.shape[1]) for patches, prefix in tokens] == [(length, 1) for length in left]
    assert model.forward_features(x).shape == (2, 1 + left[-1], 12)
    positions = [model.blocks[index].pos_embed.shape[1] for index in model.pooled_blocks]
    assert positions == sorted({*left} - {64}, reverse=True)
    assert model(x).shape == (2, 5)


def test_a_pooling_leaves_it_as_it_is():
    block = build(class_token=True).blocks[0]
    x = torch.randn(2, 65, 12)
    pooled = block(x)
    block.pool = None
    whole = block(x)
    assert torch.equal(pooled[:, 0], whole[:, 0])
    torch.testing.assert_close(pooled[:, 1:], whole[:, 1:].unfold(1, 3, 2).amax(-1) + block.pos_embed)


def test_the_head_reads_it_alone():
    model, x = build(class_token=True), torch.randn(2, 3, 64, 64)
    assert model.head.config.fusion == "cls"
    assert model.pretrained_cfg["classifier"] == ("head.cls_fc",)
    tokens = model.forward_features(x)
    torch.testing.assert_close(model(x), model.head.cls_fc(tokens[:, 0]))
    tokens[:, 1:] = torch.nan
    assert model.forward_head(tokens).isfinite().all()


@pytest.mark.parametrize("options, fusion", [
    ({"head_pooling": "mgcrp", "mgcrp_heads": 2, "mgcrp_q": 3}, "sum_fc"),
    ({"head_pooling": "mgcrp", "mgcrp_heads": 2, "mgcrp_q": 3, "head_fusion": "words"}, "words"),
    ({"head_fusion": "words"}, "words"),
])  # fmt: skip
def test_the_head_reads_the_patches_that_are_left(options, fusion):
    model, x = build(class_token=True, **options), torch.randn(2, 3, 64, 64)
    assert model.head.config.fusion == fusion
    tokens = model.forward_features(x)
    words = model.head.word_fc(model.head.pool(tokens[:, 1:]).flatten(1))
    wanted = words + model.head.cls_fc(tokens[:, 0]) if fusion == "sum_fc" else words
    torch.testing.assert_close(model(x), wanted)


@pytest.mark.parametrize("options", [{}, {"head_pooling": "mgcrp", "mgcrp_heads": 2, "mgcrp_q": 3}])
def test_every_parameter_learns(options):
    model = build(class_token=True, **options).train()
    model(torch.randn(2, 3, 64, 64)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name, width", [("hvt_tiny_1", 192), ("hvt_small_1", 384), ("hvt_small_4", 384)])
def test_parameters(name, width):
    """The token and its position; the classifier is as large as that of the average."""
    with torch.device("meta"):
        assert count(timm.create_model(name, class_token=True)) == count(timm.create_model(name)) + 2 * width
        second = {"head_pooling": "mgcrp"}
        more = count(timm.create_model(name, class_token=True, **second)) - count(timm.create_model(name, **second))
    assert more == 2 * width + 1000 * (width + 1)  # and a second classifier


def test_without_pooling_it_is_deit():
    deit = timm.create_model("deit_small_patch16_224", depth=2, num_classes=5, img_size=64).eval()
    model = timm.create_model("hvt_small_0", num_blocks=2, num_classes=5, img_size=64, class_token=True).eval()
    nn.init.normal_(deit.cls_token)
    state = {name.replace("head.", "head.cls_fc."): tensor for name, tensor in deit.state_dict().items()}
    model.load_state_dict(state)
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(model(x), deit(x))


def test_no_weight_decay():
    assert {"cls_token", "pos_embed", "blocks.0.pos_embed"} <= build(class_token=True).no_weight_decay()


def test_maps_with_it():
    model, x = build(class_token=True), torch.randn(2, 3, 64, 64)
    final, maps = model.forward_intermediates(x, return_prefix_tokens=True)
    assert [y.shape[2:] for y, _ in maps] == 2 * [(1, 31)] + 2 * [(1, 15)]
    assert [prefix.shape[1:] for _, prefix in maps] == 4 * [(1, 12)]
    assert final.shape == (2, 16, 12)
    output = model.forward_intermediates(x, return_prefix_tokens=True, output_dict=True)
    assert output["image_intermediates"][0].shape == (2, 12, 1, 31)
    assert output["image_intermediates_prefix"][0].shape == (2, 1, 12)
    whole = build(class_token=True, pool_block_width=0).forward_intermediates(x, intermediates_only=True)
    assert whole[0].shape == (2, 12, 8, 8)


def test_checkpoints(tmp_path):
    source, path, x = build(class_token=True), tmp_path / "hvt.pth", torch.randn(2, 3, 64, 64)
    nn.init.normal_(source.cls_token)
    torch.save(source.state_dict(), path)
    assert torch.equal(vision.load_checkpoint(build(class_token=True), path)(x), source(x))
    large = vision.load_checkpoint(build(class_token=True, img_size=(96, 64)), path)
    assert torch.equal(large.cls_token, source.cls_token)
    assert torch.equal(large.pos_embed[:, 0], source.pos_embed[:, 0])
    source.set_input_size((96, 64))
    x = torch.randn(2, 3, 96, 64)
    torch.testing.assert_close(large(x), source(x))


@pytest.mark.parametrize("has_one", [True, False])
def test_checkpoints_of_the_other_kind(has_one):
    said = ("has a class token, HVT has none", "has no class token, HVT has one")[not has_one]
    with pytest.raises(UsageError, match=f"{said}: cls_token; create the model with class_token={has_one}"):
        vision.load_checkpoint(build(class_token=not has_one), build(class_token=has_one).state_dict())


def test_it_is_a_switch():
    with pytest.raises(ValueError, match="class_token must be True or False, got 'yes'"):
        build(class_token="yes")


def test_train_and_evaluate(tmp_path, monkeypatch, capsys):
    """It goes on top of the sizes of a file, and the checkpoint knows it."""
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        make_split(tmp_path / "data" / split, count=2)
    (tmp_path / "hvt-mini.json").write_text(json.dumps({"input_size": 16, **TINY, "patch_size": 2}))
    words = ["--config", "hvt-mini.json", "--model-kwargs", "class_token=true", "--data-path", "data", *QUICK]
    train.main([*words, "--max-steps", "1", "-b", "4", "--experiment", "run"])
    checkpoint = load(tmp_path / "runs" / "run")
    assert checkpoint["recipe"]["kwargs"] | {"class_token": True, "num_blocks": 4} == checkpoint["recipe"]["kwargs"]
    assert checkpoint["state_dict"]["cls_token"].shape == (1, 1, 12)
    capsys.readouterr()
    validate.main(["data", "--checkpoint", "runs/run/last.pth.tar", *QUICK[:-2]])
    assert f"top-1 {float(rows(tmp_path / 'runs' / 'run')[0]['eval_top1']):.2f} %" in capsys.readouterr().out
