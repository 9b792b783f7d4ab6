import copy
import json

import pytest
import torch

from tests.support import need_shared
from tests.vision.golden import fill, golden_embeddings
from vision import TokenEmbed
from vision.models.token_embed import EMBED_TYPES

PUBLISHED_TYPES = ["DenseNet", "ResNet", "Inception", "Non-local", "Naive_linear"]


def _embed(case):
    """The embedding of a golden case with its weights; the published grid says the patch size."""
    side = round(case["shape"][1] ** 0.5)
    cfg = {"type": case["type"], "embedding_dim": 64}
    if case["type"] == "DenseNet":
        cfg["dense_norm"] = "tokens.stage.0.denselayer1.norm1.weight" in case["keys"]
    embed = TokenEmbed(cfg, img_size=case["img_size"], patch_size=case["img_size"] // side).eval()
    state = fill().state_from_shapes(case["keys"])
    embed.load_state_dict(
        {key.replace("tokens.proj.", "proj.").replace("tokens.", "proj."): value for key, value in state.items()}
    )
    return embed


def _assert_golden(case):
    embed = _embed(case)
    assert sum(parameter.numel() for parameter in embed.parameters()) == case["params"]
    with torch.no_grad():
        tokens = embed(fill().image(case["image_seed"], case["img_size"]) * case["input_scale"])
    assert list(tokens.shape) == case["shape"]
    assert embed.num_patches == case["shape"][1]
    for sample in (0, 1):
        if f"tokens_first16_sample{sample}" in case:
            golden = torch.tensor(case[f"tokens_first16_sample{sample}"])
            torch.testing.assert_close(tokens[sample, case["token_index"], :16], golden, rtol=0, atol=1e-4)
    torch.testing.assert_close(tokens.mean((1, 2)), torch.tensor(case["mean"]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "case", golden_embeddings(), ids=lambda case: f"{case['type']}-{case['img_size']}-{case['shape'][1]}"
)
def test_tokens_equal_the_published_ones(case):
    _assert_golden(case)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["sot_token_embed", "sot_token_embed_dense_bnrelu", "sovit_visual_tokens"])
def test_tokens_equal_every_published_case(file):
    content = json.loads(need_shared("reference", "embed", f"{file}.json").read_text())
    cases = [case for case in content["cases"] if case.get("runs")]
    compared = 0
    for case in cases:
        if (
            case["type"] != "Non-local" or case["input_scale"] != 1.0
        ):  # float32 is off by 0.1 there, its softmax saturates
            _assert_golden({**case, "image_seed": content["image_seed"]})
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize("large_output", [False, True])
@pytest.mark.parametrize("kind", PUBLISHED_TYPES)
def test_every_type_gives_the_promised_grid(kind, large_output):
    for img_size, side in ((224, 56 if large_output else 14), (112, 56 if large_output else 14)):
        embed = TokenEmbed(
            {"type": kind, "large_output": large_output, "token_dim": 4}, img_size=img_size, device="meta"
        )
        assert embed.grid_size == (side, side)
        assert embed(torch.empty(1, 3, img_size, img_size, device="meta")).shape == (1, side**2, 64)


@pytest.mark.parametrize("kind", PUBLISHED_TYPES)
def test_other_sizes_also_without_a_square(kind):
    embed = TokenEmbed({"type": kind, "embedding_dim": 8, "token_dim": 4}, img_size=(64, 96), patch_size=16)
    assert embed.grid_size == (4, 6)
    assert embed(torch.randn(2, 3, 64, 96)).shape == (2, 24, 8)
    assert embed(torch.randn(2, 3, 32, 16)).shape == (2, 2, 8)


@pytest.mark.parametrize("patch_size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("kind", ["densenet", "resnet", "inception", "nonlocal"])
def test_every_patch_size_halves_as_often(kind, patch_size):
    embed = TokenEmbed({"type": kind, "embedding_dim": 8, "token_dim": 4}, img_size=16, patch_size=patch_size)
    assert embed(torch.randn(2, 3, 16, 16)).shape == (2, (16 // patch_size) ** 2, 8)


def test_tokens_follow_the_rows_of_the_image():
    embed = TokenEmbed({"embedding_dim": 8, "token_dim": 4}, img_size=(32, 64), patch_size=16).eval()
    image = torch.randn(1, 3, 32, 64)
    changed = image.clone()
    changed[..., 16:, :16] += 1.0  # second row of tokens, first column
    with torch.no_grad():
        difference = (embed(changed) - embed(image)).abs().sum(-1)[0]
    assert difference.argmax() == 4


@pytest.mark.parametrize("kind", PUBLISHED_TYPES)
def test_all_parameters_learn(kind):
    embed = TokenEmbed({"type": kind, "embedding_dim": 8, "token_dim": 8}, img_size=32, patch_size=8)
    embed(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in embed.parameters())


def test_the_dictionary_is_not_changed_and_builds_share_nothing():
    cfg = {"type": "DenseNet", "embedding_dim": 64, "large_output": False}
    before = copy.deepcopy(cfg)
    first, second = TokenEmbed(cfg, patch_size=8, img_size=16), TokenEmbed(cfg, patch_size=8, img_size=16)
    assert cfg == before
    addresses = {tensor.data_ptr() for tensor in first.state_dict().values() if tensor.numel() > 1}
    assert addresses.isdisjoint(tensor.data_ptr() for tensor in second.state_dict().values() if tensor.numel() > 1)


def test_output_formats():
    image = torch.randn(1, 3, 32, 48)
    cfg = {"embedding_dim": 8, "token_dim": 4}
    assert TokenEmbed(cfg, 32, 16, output_fmt="NHWC")(image).shape == (1, 2, 3, 8)
    assert TokenEmbed(cfg, 32, 16, flatten=False)(image).shape == (1, 8, 2, 3)
    assert TokenEmbed(cfg, 32, 16, dynamic_img_pad=True)(torch.randn(1, 3, 30, 33)).shape == (1, 6, 8)
    assert TokenEmbed(cfg, 32, 16, embed_dim=5, in_chans=1)(torch.randn(1, 1, 32, 32)).shape == (1, 4, 5)


def test_input_size_can_change_and_the_patch_size_of_convolutions_cannot():
    embed = TokenEmbed({"embedding_dim": 8, "token_dim": 4}, img_size=32, patch_size=16)
    embed.set_input_size((64, 32))
    assert (embed.grid_size, embed.num_patches) == ((4, 2), 8)
    with pytest.raises(ValueError, match="patch_size of a densenet embedding is fixed at 16, got 8"):
        embed.set_input_size(patch_size=8)
    linear = TokenEmbed("linear", img_size=32, patch_size=16)
    linear.set_input_size(patch_size=8)
    assert linear(torch.randn(1, 3, 32, 32)).shape == (1, 16, 64)


@pytest.mark.parametrize(
    "cfg, kwargs, message",
    [
        ({"typ": "DenseNet"}, {}, r"Unknown key 'typ' in the token embedding's dictionary; did you mean 'type'\?"),
        ({"type": "VGG"}, {}, "Unknown token embedding type 'VGG', expected one of"),
        ({"embedding_dim": 0}, {}, "embedding_dim must be positive, got 0"),
        ({"token_dim": 6}, {}, "token_dim must be a positive multiple of 4, got 6"),
        ({"type": "ResNet", "dense_norm": True}, {}, "are options of DenseNet, not of 'ResNet'"),
        ({}, {"img_size": 230}, r"img_size \(230, 230\) must be a multiple .* 16, the nearest: \(224, 224\) or"),
        ({}, {"img_size": 24, "patch_size": 12}, r"patch_size must be a power of two up to 16, got \(12, 12\)"),
        ({}, {"img_size": 64, "patch_size": 32}, r"patch_size must be a power of two up to 16, got \(32, 32\)"),
    ],
)
def test_errors_name_the_value(cfg, kwargs, message):
    with pytest.raises(ValueError, match=message):
        TokenEmbed(cfg, **kwargs)


def test_published_names_are_types():
    assert set(PUBLISHED_TYPES) <= set(EMBED_TYPES)
