"""UperNet: maps, sizes, blocks, parameter counts, and what it refuses."""

import pytest
import torch

from sot_base.errors import UsageError
from tests.vision.segment.conftest import RECIPE
from vision.segment import build_segmenter, summary
from vision.segment.build import complete_recipe
from vision.segment.neck import take_indices

SOT = {"depth": 4, "embed_dim": 32, "num_heads": 2}
VIT = {"depth": 4, "embed_dim": 32, "num_heads": 2}


def build(**changes):
    torch.manual_seed(0)
    return build_segmenter({**RECIPE, **changes}).eval()


@pytest.mark.parametrize(
    "name, kwargs",
    [("lvvit_t", RECIPE["kwargs"]), ("sot_tiny", {**SOT, "patch_size": 16}), ("vit_tiny_patch16_224", VIT)],
)
@pytest.mark.parametrize("neck, strides, last", [("side", (4, 8, 16, 16), 32), ("pyramid", (4, 8, 16, 32), 32)])
def test_maps_have_the_strides_of_the_neck(name, kwargs, neck, strides, last):
    model = build(model=name, kwargs=kwargs, neck=neck)
    maps = model.encoder(torch.randn(1, 3, 64, 96))
    assert [tuple(x.shape[1:]) for x in maps] == [
        (channels, 64 // stride, 96 // stride) for channels, stride in zip((32, 32, 32, last), strides, strict=True)
    ]
    assert model(torch.randn(1, 3, 64, 96)).shape == (1, 4, 64, 96)


@pytest.mark.parametrize("neck", ["side", "pyramid"])
@pytest.mark.parametrize("size", [(50, 77), (64, 64), (7, 130)])
def test_any_size_gives_its_logits(neck, size):
    model = build(neck=neck)
    x = torch.randn(2, 3, *size)
    logits = model(x)
    assert logits.shape == (2, 4, *size)
    multiple = 16 if neck == "side" else 32
    padded = torch.zeros(2, 3, *(-(-side // multiple) * multiple for side in size))
    padded[..., : size[0], : size[1]] = x
    torch.testing.assert_close(logits, model(padded)[..., : size[0], : size[1]])


def test_training_gives_the_auxiliary_logits_too():
    model = build().train()
    logits, aux = model(torch.randn(2, 3, 50, 70))
    assert logits.shape == aux.shape == (2, 4, 50, 70)
    assert isinstance(build(aux_channels=0).train()(torch.randn(2, 3, 64, 64)), torch.Tensor)


def test_every_parameter_learns():
    """Nothing is left over from the classifier, which distributed training would stumble over."""
    for neck in ("side", "pyramid"):
        model = build(neck=neck).train()
        logits, aux = model(torch.randn(2, 3, 64, 64))
        (logits.square().mean() + aux.square().mean()).backward()
        assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_prefix_tokens_are_dropped_and_blocks_taken_in_their_order():
    model = build(out_indices=(0, 1, 2, 3))
    backbone = model.encoder.backbone
    x = torch.randn(1, 3, 64, 64)
    tokens = backbone._pos_embed(backbone.patch_embed(x))
    assert tokens.shape[1] == 17
    seen = []
    model.encoder.neck.register_forward_pre_hook(lambda module, args: seen.extend(args[0]))
    model.encoder(x)
    for block, found in zip(backbone.blocks, seen, strict=True):
        tokens = block(tokens)
        torch.testing.assert_close(found, tokens[:, 1:].transpose(1, 2).unflatten(2, (4, 4)))


def test_blocks_after_the_last_that_is_taken_are_left_out():
    model = build(kwargs={**RECIPE["kwargs"], "depth": 6}, out_indices=(0, 1, 2, 3))
    assert len(model.encoder.backbone.blocks) == 4


@pytest.mark.parametrize(
    "neck, depth, expected",
    [
        ("side", 16, (6, 9, 12, 15)),
        ("side", 20, (10, 13, 16, 19)),
        ("side", 24, (14, 17, 20, 23)),
        ("side", 4, (0, 1, 2, 3)),
        ("pyramid", 16, (3, 7, 11, 15)),
        ("pyramid", 14, (2, 6, 9, 13)),
    ],
)
def test_which_blocks_are_taken(neck, depth, expected):
    assert take_indices(neck, depth) == expected


def test_position_embedding_of_the_crop_is_taken_as_it_is():
    small, large = build(), build(crop_size=96)
    assert small.encoder.backbone.pos_embed.shape[1] == 17
    assert large.encoder.backbone.pos_embed.shape[1] == 37
    with pytest.raises(UsageError, match="img_size"):
        build(crop_size=70)


@pytest.mark.parametrize("name", ["resnet18", "hvt_tiny_1", "swin_tiny_sot"])
def test_other_models_are_refused(name):
    with pytest.raises(UsageError, match=f"{name} is not a plain vision transformer: --model; give lvvit_s"):
        complete_recipe({**RECIPE, "model": name})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": "lvvit_x"}, "unknown model lvvit_x: .*did you mean"),
        ({"kwargs": {"depth": 3}}, "tokens of four blocks: the model has 3"),
        ({"out_indices": (0, 1, 2, 4)}, "four rising blocks of 0 to 3"),
        ({"out_indices": (0, 2, 1, 3)}, "four rising blocks of 0 to 3"),
        ({"kwargs": {"nonsense": 1}}, "cannot build the model lvvit_t"),
    ],
)
def test_values_that_do_not_fit(changes, message):
    with pytest.raises(UsageError, match=message):
        build(**changes)


def test_parameters_are_the_published_ones(capsys):
    assert summary.main([]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {row[0]: (round(float(row[-2])), int(row[-1])) for row in table[1:]}
    assert found == {"lvvit_s": (44, 44), "lvvit_m": (77, 77), "lvvit_l": (209, 209)}


def test_summary_of_another_model(capsys):
    words = ["--model", "vit_tiny_patch16_224", "--neck", "pyramid", "--decoder-channels", "32", "--aux-channels", "0"]
    assert summary.main(words) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert (row[0], row[4], row[6]) == ("vit_tiny_patch16_224", "0.000", "-")


def test_weight_decay_and_layer_decay_groups():
    from vision.training.task import create_optimizer

    model = build()
    assert "encoder.backbone.pos_embed" in model.no_weight_decay()
    optimizer = create_optimizer(model, opt="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    scale = {p: group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    assert scale[model.segmentation_head[0].weight] == 1.0
    blocks = [scale[block.mlp.fc1.weight] for block in model.encoder.backbone.blocks]
    assert blocks == [0.5**4, 0.5**3, 0.5**2, 0.5]
    assert scale[model.encoder.backbone.patch_embed.proj.proj.weight] == 0.5**5
