import argparse
import logging

import pytest
import timm
import torch
from safetensors.torch import save_file

import vision
from sot_base.errors import UsageError
from tests.vision.golden import GOLDEN_FILES, assert_close_to_golden, fill, golden_model, published_state
from vision.models.weights.published_names import is_published

TINY = {"embed_dim": 24, "depth": 2, "num_heads": 2, "token_embed": {"token_dim": 8, "dense_layers": 1}}
HEAD = {"mgcrp_heads": 2, "mgcrp_q": 3}


def build(num_classes=5, img_size=64, **kwargs):
    settings = {**TINY, **HEAD, "num_classes": num_classes, "img_size": img_size, **kwargs}
    return timm.create_model("sot_tiny", **settings).eval()


def published_names(model):
    """A model's tensors as the published code names them."""
    names = (
        ("patch_embed.proj.", "visual_tokens.tokens."),
        ("head.pool.proj.", "classifier.representation.wr."),
        ("head.pool.norm.start_vector", "classifier.representation.norm.weight"),
        ("head.word_fc.", "classifier.visual_fc."),
        ("head.cls_fc.", "classifier.cls_fc."),
    )
    state = {}
    for name, tensor in model.state_dict().items():
        for ours, published in names:
            name = name.replace(ours, published)
        state[name] = tensor.clone()
    return state


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", [
    "SoT_Tiny", "SoT_Tiny.dense_bnrelu", "So_vit_7", "So_vit_10",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("SoT_Small", "So_vit_14", "So_vit_19", "SoT_Base")),
])  # fmt: skip
def test_logits_equal_the_published_ones(name):
    golden = golden_model(name)
    options = {"token_embed": {"dense_norm": True}} if "bnrelu" in name else {}
    model = timm.create_model(golden["model"], **options).eval()
    vision.load_published_checkpoint(model, published_state(golden))
    with torch.no_grad():
        assert_close_to_golden(model(fill().image(golden["image_seed"], golden["img_size"])), golden, 1e-5)
    assert model.head.config.center == ("token" if "vit" in name else "sample")
    assert model.head.config.residual_eps == 1e-5


@pytest.mark.parametrize("name", ["SoT_Tiny", "So_vit_7"])
def test_logits_equal_the_published_ones_in_float64(name):
    golden = golden_model(name)
    model = timm.create_model(golden["model"]).double().eval()
    vision.load_published_checkpoint(model, published_state(golden, torch.float64))
    with torch.no_grad():
        assert_close_to_golden(model(fill().image(11, 224).double()), golden, 1e-9)


@pytest.mark.parametrize("name, dtype, tolerance", [
    ("hvt_tiny_1", torch.float64, 1e-9),
    ("lvvit_t", torch.float64, 1e-9),
    *((name, torch.float32, 1e-5) for name in ("hvt_tiny_1", "hvt_small_0", "scale_hvt_tiny_4", "lvvit_t")),
    *(
        pytest.param(name, torch.float32, 1e-5, marks=pytest.mark.slow)
        for name in ("hvt_small_1", "hvt_small_2", "hvt_small_3", "lvvit_s", "lvvit_s_384", "lvvit_m", "lvvit_l")
    ),
])  # fmt: skip
def test_logits_of_hvt_and_lvvit_equal_the_published_ones(name, dtype, tolerance):
    golden = golden_model(GOLDEN_FILES[name])
    model = timm.create_model(name).to(dtype).eval()
    vision.load_published_checkpoint(model, published_state(golden, dtype), strict=True)
    with torch.no_grad():
        logits = model(fill().image(golden["image_seed"], golden["img_size"]).to(dtype))
    assert_close_to_golden(logits, golden, tolerance)


def test_the_published_centring_is_another_one():
    golden = golden_model("SoT_Tiny")
    model = vision.load_published_checkpoint(timm.create_model("SoT_Tiny"), published_state(golden)).eval()
    ours = timm.create_model("SoT_Tiny").eval()
    ours.load_state_dict(model.state_dict())
    x = fill().image(11, 224)
    with torch.no_grad():
        assert (ours(x) - model(x)).abs().max() > 1e-3


def test_position_table():
    golden = golden_model("SoT_Tiny")["sinusoid_check"]
    table = timm.create_model("sot_tiny").pos_embed[0]
    assert list(table.shape) == golden["shape"][1:]
    for row in (0, 1, 100):
        torch.testing.assert_close(table[row, :8], torch.tensor(golden[f"row{row}_first8"]), rtol=0, atol=1e-6)
    torch.testing.assert_close(table[196, -4:], torch.tensor(golden["row196_last4"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ["tensors", "ddp", "ema", "file", "safetensors"])
def test_every_form_of_a_checkpoint(form, tmp_path):
    source, other = build(), build()
    state = published_names(source)
    path = tmp_path / "published.pth.tar"
    checkpoint = state
    if form == "ddp":
        checkpoint = {"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}
    elif form in ("ema", "file"):
        checkpoint = {
            "epoch": 300,
            "arch": "SoT_Tiny",
            "args": argparse.Namespace(lr=1e-3),
            "state_dict": published_names(other),
            "state_dict_ema": {f"module.{name}": tensor for name, tensor in state.items()},
        }
    if form == "file":
        torch.save(checkpoint, path)
        checkpoint = path
    if form == "safetensors":
        checkpoint = tmp_path / "published.safetensors"
        save_file(state, checkpoint)
    model = vision.load_published_checkpoint(build(), checkpoint)
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in model.state_dict().items())
    if form == "ema":
        raw = vision.load_published_checkpoint(build(), checkpoint, use_ema=False)
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in raw.state_dict().items())


def test_another_number_of_classes_starts_the_classifiers_afresh(caplog):
    state, model = published_names(build()), build(num_classes=3)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with caplog.at_level(logging.INFO):
        vision.load_published_checkpoint(model, state)
    (warning,) = warnings_of(caplog)
    reset = ("head.cls_fc.weight", "head.cls_fc.bias", "head.word_fc.weight", "head.word_fc.bias")
    assert all(name in warning for name in reset)
    assert "head.pool" not in warning
    assert "center='sample' and residual_eps=1e-5" in caplog.text
    assert all(torch.equal(model.state_dict()[name], fresh[name]) for name in reset)
    assert torch.equal(model.blocks[0].attn.qkv.weight, state["blocks.0.attn.qkv.weight"])
    assert torch.equal(model.head.pool.proj.weight, state["classifier.representation.wr.weight"])
    assert model(torch.randn(2, 3, 64, 64)).shape == (2, 3)
    with pytest.raises(UsageError, match=r"head\.cls_fc\.weight does not fit"):
        vision.load_published_checkpoint(build(num_classes=3), state, strict=True)


def test_another_head_starts_its_own_parts_afresh(caplog):
    state = published_names(build())
    model = build(mgcrp_q=4)
    vision.load_published_checkpoint(model, state)
    (warning,) = warnings_of(caplog)
    assert "head.pool.proj.weight" in warning
    assert "head.cls_fc.weight" not in warning
    caplog.clear()
    words = vision.load_published_checkpoint(build(head_fusion="words"), state)
    (warning,) = warnings_of(caplog)
    assert "head.cls_fc.weight, head.cls_fc.bias are not used" in warning
    assert torch.equal(words.head.word_fc.weight, state["classifier.visual_fc.weight"])


def test_a_fitting_checkpoint_warns_of_nothing(caplog):
    vision.load_published_checkpoint(build(), published_names(build()))
    assert warnings_of(caplog) == []


def test_positions_are_interpolated_on_their_grid():
    source = build(fixed_pos_embed=False)
    state = published_names(source)
    wide = vision.load_published_checkpoint(build(img_size=(64, 96)), state)
    assert not wide.pos_embed.requires_grad
    assert torch.equal(wide.pos_embed[:, 0], source.pos_embed[:, 0])  # the class token's
    grid = source.pos_embed[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.interpolate(grid, (4, 6), mode="bicubic", antialias=True)
    found = wide.pos_embed[:, 1:].unflatten(1, (4, 6)).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, wanted)
    assert wide(torch.randn(1, 3, 64, 96)).shape == (1, 5)
    same = vision.load_published_checkpoint(build(), state)
    assert torch.equal(same.pos_embed, source.pos_embed)


def test_positions_of_a_grid_that_is_not_square():
    source = build(img_size=(32, 128), fixed_pos_embed=False)  # 2 x 8 tokens, as many as 4 x 4
    state = published_names(source)
    same = vision.load_published_checkpoint(build(img_size=(32, 128)), state, source_grid=(2, 8))
    assert torch.equal(same.pos_embed, source.pos_embed)
    own = vision.load_checkpoint(build(img_size=(32, 128), fixed_pos_embed=False), source.state_dict())
    assert torch.equal(own.pos_embed, source.pos_embed)
    as_square = vision.load_published_checkpoint(build(img_size=(32, 128)), state)
    assert not torch.equal(as_square.pos_embed, source.pos_embed)
    square = vision.load_published_checkpoint(build(), state, source_grid=(2, 8))
    assert not torch.equal(square.pos_embed, source.pos_embed)
    with pytest.raises(
        UsageError, match="16 positions do not form a grid of 3x5: pos_embed; give its height and width"
    ):
        vision.load_published_checkpoint(build(), state, source_grid=(3, 5))


def test_a_checkpoint_that_does_not_fit_leaves_the_model_alone():
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = published_names(build(depth=3))
    with pytest.raises(UsageError, match=r"does not fit SoT: blocks\.2\.norm1\.weight \(24,\).* and 6 more"):
        vision.load_published_checkpoint(model, state)
    with pytest.raises(UsageError, match=r"blocks\.1\.norm1\.weight missing"):
        vision.load_published_checkpoint(model, published_names(build(depth=1)))
    dense = published_names(build(token_embed={**TINY["token_embed"], "dense_norm": True}))
    with pytest.raises(UsageError, match=r"create the model with token_embed=\{'dense_norm': True\}"):
        vision.load_published_checkpoint(model, dense)
    assert model.head.config.center == "token"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_is_no_published_checkpoint_is_said(tmp_path):
    with pytest.raises(UsageError, match=r"not a published SoT or So-ViT checkpoint: .*vision\.load_checkpoint"):
        vision.load_published_checkpoint(build(), build().state_dict())
    with pytest.raises(UsageError, match=r"unknown tensor 'layers\.0\.weight'"):
        vision.load_published_checkpoint(
            build(), {"visual_tokens.tokens.x": torch.ones(1), "layers.0.weight": torch.ones(1)}
        )
    with pytest.raises(UsageError, match=r"no such file: .*/absent\.pth; check the path"):
        vision.load_published_checkpoint(build(), tmp_path / "absent.pth")
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"PK\x03\x04 not a checkpoint")
    with pytest.raises(UsageError, match=r"broken\.pth"):
        vision.load_published_checkpoint(build(), broken)
    with pytest.raises(UsageError, match="no tensors by name: the dictionary given"):
        vision.load_published_checkpoint(build(), {"state_dict": {"a": 1}})


def test_the_state_dict_given_is_not_changed():
    state = published_names(build())
    before = {name: tensor.clone() for name, tensor in state.items()}
    vision.load_published_checkpoint(build(img_size=96), state)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_timms_own_way_of_loading(tmp_path):
    source, path = build(num_classes=1000), tmp_path / "SoT_Tiny.pth"
    torch.save(published_names(source), path)
    overlay = {"file": str(path)}
    model = build(num_classes=1000, pretrained=True, pretrained_cfg_overlay=overlay)
    assert model.head.config.center == "sample"
    assert torch.equal(model.head.word_fc.weight, source.head.word_fc.weight)
    few = build(num_classes=4, img_size=96, pretrained=True, pretrained_cfg_overlay=overlay)
    assert torch.equal(few.blocks[1].attn.qkv.weight, source.blocks[1].attn.qkv.weight)
    assert few(torch.randn(1, 3, 96, 96)).shape == (1, 4)


class TestOwnCheckpoints:
    def test_another_size_and_number_of_classes(self, tmp_path, caplog):
        source, path = build(), tmp_path / "last.pth.tar"
        torch.save({"state_dict": source.state_dict(), "epoch": 1}, path)
        model = vision.load_checkpoint(build(num_classes=3, img_size=96), path)
        assert len(warnings_of(caplog)) == 1
        assert torch.equal(model.blocks[0].mlp.fc1.weight, source.blocks[0].mlp.fc1.weight)
        assert model.head.config.center == "token"
        with pytest.raises(UsageError, match="does not fit"):
            vision.load_checkpoint(build(num_classes=3), path, strict=True)

    def test_published_ones_are_recognised(self):
        model = vision.load_checkpoint(build(), published_names(build()))
        assert model.head.config.center == "sample"

    def test_others_classifiers_of_the_same_name_are_not(self):
        assert not is_published(timm.create_model("mobilenetv3_small_050", num_classes=3).state_dict())
        assert is_published(published_names(build()))

    def test_prefix_tokens_are_counted(self):
        small = {"embed_dim": 24, "depth": 1, "num_heads": 2, "num_classes": 3}
        prefixes = {
            "vit_tiny_patch16_224": 1,
            "deit_tiny_distilled_patch16_224": 2,
            "vit_medium_patch16_reg4_gap_256": 0,
            "cait_xxs24_224": 0,  # its class token has no position
        }
        for name, prefix in prefixes.items():
            source = timm.create_model(name, img_size=64, **small)
            model = vision.load_checkpoint(timm.create_model(name, img_size=96, **small), source.state_dict())
            assert torch.equal(model.pos_embed[:, :prefix], source.pos_embed[:, :prefix])
            assert model.pos_embed.shape[1] == 36 + prefix

    def test_swin_of_another_window(self):
        small = {
            "embed_dim": 8,
            "depths": (1, 1),
            "num_heads": (1, 2),
            "token_embed": {"token_dim": 8, "dense_layers": 1},
        }
        source = timm.create_model("swin_tiny_sot", img_size=64, window_size=4, num_classes=3, **small)
        model = timm.create_model("swin_tiny_sot", img_size=96, window_size=6, num_classes=3, **small)
        vision.load_checkpoint(model, source.state_dict())
        assert torch.equal(model.head.word_fc.weight, source.head.word_fc.weight)
