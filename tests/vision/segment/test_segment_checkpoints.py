"""Weights from classifiers, from mmsegmentation, and from other runs."""

import re

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed

from sot_base.errors import UsageError
from tests.vision.models.test_lvvit import published_names
from tests.vision.segment.conftest import RECIPE
from tests.vision.segment.mmseg import mmseg_shapes, mmseg_state
from vision.segment import build_segmenter, load_backbone, load_segmenter
from vision.segment.build import complete_recipe
from vision.segment.mmseg_names import from_mmseg, is_mmseg, mmseg_recipe
from vision.segment.weights import load_initial, load_mmseg, load_pretrained


def classifier(**changes):
    torch.manual_seed(1)
    return timm.create_model("lvvit_t", **{**RECIPE["kwargs"], "img_size": 64, "num_classes": 5, **changes})


def build(**changes):
    return build_segmenter({**RECIPE, **changes}).eval()


@pytest.mark.parametrize("published", [False, True])
def test_backbone_of_a_classifier(tmp_path, published):
    model = classifier().eval()
    state = published_names(model) if published else model.state_dict()
    torch.save({"state_dict": state}, tmp_path / "weights.pth")
    segmenter = build()
    unused = load_backbone(segmenter, str(tmp_path / "weights.pth"))
    assert {name.split(".")[0] for name in unused} == {"norm", "head"}
    x = torch.randn(1, 3, 64, 64)
    expected = model.forward_intermediates(x, [0, 1, 2, 3], intermediates_only=True)
    found = segmenter.encoder.backbone.forward_intermediates(x, [0, 1, 2, 3], intermediates_only=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_pretrained_weights_of_timm(tmp_path):
    """A file stands for the download; positions of 224 pixels are interpolated."""
    sizes = {"depth": 4, "embed_dim": 32, "num_heads": 2}
    torch.manual_seed(1)
    whole = timm.create_model("vit_tiny_patch16_224", **sizes)
    torch.save(whole.state_dict(), tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth")}
    recipe = complete_recipe(
        {**RECIPE, "model": "vit_tiny_patch16_224", "kwargs": {**sizes, "pretrained_cfg_overlay": overlay}}
    )
    segmenter = build_segmenter(recipe)
    unused = load_pretrained(segmenter, recipe)
    assert {name.split(".")[0] for name in unused} == {"norm", "head"}
    backbone = segmenter.encoder.backbone
    assert torch.equal(backbone.blocks[3].mlp.fc1.weight, whole.blocks[3].mlp.fc1.weight)
    assert torch.equal(backbone.pos_embed, resample_abs_pos_embed(whole.pos_embed, [4, 4], num_prefix_tokens=1))


def test_position_embedding_is_interpolated(tmp_path):
    """A smooth one stays what it is at another size."""
    model = classifier(img_size=128)
    with torch.no_grad():
        model.pos_embed[:, 1:] = torch.linspace(-1, 1, 8).repeat(8).view(1, 64, 1).expand(-1, -1, 32)
        model.pos_embed[:, 0] = 7.0
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    segmenter = build()
    load_backbone(segmenter, str(tmp_path / "weights.pth"))
    found = segmenter.encoder.backbone.pos_embed
    assert found.shape == (1, 17, 32)
    assert (found[:, 0] == 7).all()
    grid = found[0, 1:, 0].view(4, 4)
    torch.testing.assert_close(grid, grid[:1].expand(4, -1))
    torch.testing.assert_close(grid[0], -grid[0].flip(0))
    assert (grid[0].diff() > 0).all()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"embed_dim": 48}, "the checkpoint does not fit LVViT: .*48"),
        ({"depth": 5}, r"does not fit LVViT: blocks\.4\."),
    ],
)
def test_a_backbone_that_does_not_fit(tmp_path, changes, message):
    torch.save(classifier(**changes).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(UsageError, match=message):
        load_backbone(build(), str(tmp_path / "weights.pth"))


def test_a_backbone_with_a_missing_block(tmp_path):
    state = classifier(depth=3).state_dict()
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(UsageError, match=r"blocks\.3\.\S+ missing"):
        load_backbone(build(), str(tmp_path / "weights.pth"))


def test_blocks_that_are_not_used_need_not_fit(tmp_path):
    torch.save(classifier(depth=6).state_dict(), tmp_path / "weights.pth")
    model = build(kwargs={**RECIPE["kwargs"], "depth": 6}, out_indices=(0, 1, 2, 3))
    unused = load_backbone(model, str(tmp_path / "weights.pth"))
    assert {name[:9] for name in unused if name.startswith("blocks")} == {"blocks.4.", "blocks.5."}


def test_mmsegmentations_checkpoint_fits_in_full():
    state, model = mmseg_state(), build()
    assert is_mmseg(state)
    assert not is_mmseg(model.state_dict())
    report = load_mmseg(model, state, strict=True)
    assert (report.fresh, report.unused) == ([], [])
    assert len(report.loaded) == len(state) == len(model.state_dict())


def test_mmsegmentations_decoder_in_its_order():
    """The pyramid as mmsegmentation's UPerHead computes it, from its own names, gives the same logits."""
    import torch.nn.functional as F

    state, model = mmseg_state(), build()
    load_mmseg(model, state)
    maps = [torch.rand(1, c, s, s) for c, s in ((32, 16), (32, 8), (32, 4), (32, 4))]

    def conv_norm(name, x):
        weight = state[f"{name}.conv.weight"]
        x = F.conv2d(x, weight, padding=weight.shape[-1] // 2)
        values = [state[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *values).relu()

    def resize(x, like):
        return F.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=False)

    head = "decode_head"
    pooled = [
        conv_norm(f"{head}.psp_modules.{i}.1", F.adaptive_avg_pool2d(maps[3], s)) for i, s in enumerate((1, 2, 3, 6))
    ]
    top = conv_norm(f"{head}.bottleneck", torch.cat([maps[3], *(resize(x, maps[3]) for x in pooled)], 1))
    laterals = [conv_norm(f"{head}.lateral_convs.{i}", maps[i]) for i in range(3)] + [top]
    for i in (3, 2, 1):
        laterals[i - 1] = laterals[i - 1] + resize(laterals[i], laterals[i - 1])
    outs = [conv_norm(f"{head}.fpn_convs.{i}", laterals[i]) for i in range(3)] + [laterals[3]]
    fused = conv_norm(f"{head}.fpn_bottleneck", torch.cat([resize(x, outs[0]) for x in outs], 1))
    expected = F.conv2d(fused, state[f"{head}.conv_seg.weight"], state[f"{head}.conv_seg.bias"])
    found = model.segmentation_head(model.decoder([None, None, *maps]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_mmsegmentations_checkpoint_of_other_classes_and_size():
    model = build(num_classes=7, crop_size=96)
    report = load_mmseg(model, mmseg_state())
    assert sorted(report.fresh) == [
        "aux_head.2.0.bias",
        "aux_head.2.0.weight",
        "segmentation_head.0.bias",
        "segmentation_head.0.weight",
    ]
    assert len(report.unused) == 4
    assert "4 re-initialised: segmentation_head.0.weight" in str(report)
    assert model.encoder.backbone.pos_embed.shape[1] == 37
    with pytest.raises(UsageError, match=r"the checkpoint does not fit the model: .*4 re-initialised"):
        load_mmseg(model, mmseg_state(), strict=True)


def test_mmsegmentations_decoder_of_another_width_starts_afresh_but_the_backbone_must_fit():
    model = build(decoder_channels=24)
    report = load_mmseg(model, mmseg_state())
    assert any(name.startswith("encoder.backbone.blocks.3.") for name in report.loaded)
    assert any(name.startswith("decoder.") for name in report.fresh)
    assert "decode_head.surplus" in load_mmseg(build(), mmseg_state() | {"decode_head.surplus": torch.ones(1)}).unused
    with pytest.raises(UsageError, match="does not fit LVViT"):
        load_mmseg(model, mmseg_state(width=48))


def test_the_recipe_of_mmsegmentations_checkpoint(tmp_path):
    path = tmp_path / "upernet.pth"
    meta = {"CLASSES": ("wall", "sky", "tree", "sea")}
    torch.save({"meta": meta, "state_dict": mmseg_state(grid=5)}, path)
    found = load_segmenter(str(path), "lvvit_t", RECIPE["kwargs"])
    assert (found.recipe["crop_size"], found.recipe["decoder_channels"], found.recipe["last_channels"]) == (80, 16, 32)
    assert found.class_names == ["wall", "sky", "tree", "sea"]
    assert found.rules.reduce_zero_label
    assert (found.window, found.images["short_side"]) == (512, 512)
    assert found.model.encoder.backbone.blocks[0].norm1.eps == 1e-6
    assert found.model(torch.randn(1, 3, 80, 80)).shape == (1, 4, 80, 80)
    with pytest.raises(UsageError, match=r"does not say its backbone: .*give --model"):
        load_segmenter(str(path))
    state = mmseg_state()
    del state["backbone.side_layer4.0.weight"]
    with pytest.raises(UsageError, match=r"lacks the tensor 'backbone\.side_layer4\.0\.weight'"):
        mmseg_recipe(state)


@pytest.mark.parametrize(
    "name, depth, width, channels, stem",
    [("lvvit_s", 16, 384, 256, 64), ("lvvit_m", 20, 512, 256, 64), ("lvvit_l", 24, 768, 512, 128)],
)
def test_the_published_configurations_fit(name, depth, width, channels, stem):
    """Every tensor of the released models has its place, by name and shape."""
    with torch.device("meta"):
        model = build_segmenter({"model": name, "num_classes": 150, "crop_size": 512})
    grid = 28 if name == "lvvit_l" else 32
    shapes = mmseg_shapes(width, depth, channels, 2048, 150, grid, stem)
    state = {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}
    own = {key: value.shape for key, value in model.state_dict().items()}
    found = {key: value.shape for key, value in from_mmseg(state).items()}
    differing = {key for key in own.keys() | found.keys() if own.get(key) != found.get(key)}
    assert differing == ({"encoder.backbone.pos_embed"} if grid == 28 else set())
    recipe = complete_recipe({**mmseg_recipe(state), "model": name})
    assert recipe["crop_size"] == grid * 16


def test_the_published_lvvit_l_divides_no_branch(tmp_path):
    """Its configuration for segmentation leaves skip_lam at 1, unlike the classifier."""
    kwargs = {**RECIPE["kwargs"], "depth": 4}
    torch.save({"state_dict": mmseg_state()}, tmp_path / "upernet.pth")
    found = [
        load_segmenter(str(tmp_path / "upernet.pth"), "lvvit_l", kwargs | more)
        .model.encoder.backbone.blocks[0]
        .skip_lam
        for more in ({}, {"skip_lam": 3.0})
    ]
    assert found == [1.0, 3.0]


def test_initial_weights_of_another_run(tmp_path):
    other = build(num_classes=9)
    torch.save({"state_dict": other.state_dict()}, tmp_path / "weights.pth")
    model = build()
    report = load_initial(model, str(tmp_path / "weights.pth"))
    assert len(report.fresh) == len(report.unused) == 4
    assert torch.equal(model.decoder.psp.out_conv[0].weight, other.decoder.psp.out_conv[0].weight)


def test_a_classifier_is_no_segmentation_model(tmp_path):
    torch.save(classifier().state_dict(), tmp_path / "weights.pth")
    with pytest.raises(UsageError, match=re.escape("no segmentation model: ")):
        load_segmenter(str(tmp_path / "weights.pth"))
