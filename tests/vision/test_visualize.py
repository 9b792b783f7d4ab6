"""vision/visualize.py: maps of every family of backbones, and the command line."""

import re
import shlex

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import vision
from sot_base.errors import UsageError
from sot_visual.attribution import METHODS
from tests.sot_visual.test_page import Tags
from tests.support import REPOSITORY
from vision.cli.config_file import parse_args
from vision.models.token_pool import pooled_length, spread_pooled
from vision.validate import validate_parser
from vision.visualization.explain import explain_images, image_maps
from vision.visualization.image_model import ImageModel
from vision.visualize import main, visualize_parser

SMALL_VIT = {"embed_dim": 24, "depth": 2, "num_heads": 2}
BACKBONES = {  # name, arguments, whether the head is attached, size of the image, grid
    "sot": ("sot_micro", {}, False, (32, 32), (8, 8)),
    "vit-own head": ("vit_tiny_patch16_224", {"img_size": (32, 48), **SMALL_VIT}, False, (32, 48), (2, 3)),
    "vit": ("vit_tiny_patch16_224", {"img_size": (32, 48), **SMALL_VIT}, True, (32, 48), (2, 3)),
    "deit": ("deit_tiny_distilled_patch16_224", {"img_size": 32, **SMALL_VIT}, True, (32, 32), (2, 2)),
    "swin": ("swin_tiny_sot", {"img_size": 64, "window_size": 2}, False, (64, 64), (2, 2)),
    "hvt": ("hvt_tiny_1", {"img_size": 64, "num_blocks": 4, "pool_block_width": 2}, False, (64, 64), (4, 4)),
    "lvvit": ("lvvit_t", {"img_size": 32, "depth": 2, "head_pooling": "mgcrp"}, False, (32, 32), (2, 2)),
    "resnet": ("resnet18", {}, True, (64, 96), (2, 3)),
    "resnet-own head": ("resnet18", {}, False, (64, 96), (2, 3)),
}
WITHOUT_CONTRIBUTIONS = ("vit-own head", "resnet-own head")
WITHOUT_RELEVANCE = ("swin", "hvt", "resnet", "resnet-own head")


def build(name):
    model, options, attach, size, grid = BACKBONES[name]
    model = timm.create_model(model, num_classes=4, **options)
    if attach:
        vision.attach_head(model, num_heads=2, q_dim=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return ImageModel(model, (3, *size)), torch.randn(2, 3, *size), grid


@pytest.mark.parametrize("name", BACKBONES)
def test_maps_of_every_method(name):
    model, images, grid = build(name)
    assert model.grid == grid
    view, target = model.view(), torch.tensor([1, 2])
    torch.testing.assert_close(view.logits(images), model.model(images))
    for method in METHODS:
        lacks = WITHOUT_CONTRIBUTIONS if method == "contributions" else WITHOUT_RELEVANCE
        if method in ("contributions", "relevance") and name in lacks:
            with pytest.raises(UsageError, match="choose another --method"):
                image_maps(model, view, images, target, method)
            continue
        for part in view.parts:
            maps = image_maps(model, view, images, target, method, part)
            on_pixels = method in ("gradient_x_input", "integrated_gradients", "random")
            assert maps.shape == (2, *(images.shape[-2:] if on_pixels else grid))
            assert maps.isfinite().all()


@pytest.mark.parametrize("name", ["sot", "vit", "deit", "swin", "hvt", "resnet"])
def test_word_contributions_add_up_to_the_words_logit(name):
    model, images, _ = build(name)
    view, target = model.view(), torch.tensor([3, 0])
    maps = image_maps(model, view, images, target, "contributions", "word" if "word" in view.parts else "both")
    word = model.head.contributions(view.tokens(images)[0]).word - model.head.word_fc.bias
    expected = word.gather(1, target[:, None])[:, 0].detach()
    if name == "hvt":  # spread over the patches: the same ups and downs, not the same sum
        assert maps.flatten(1).std() > 0
    else:
        torch.testing.assert_close(maps.sum(dim=(1, 2)), expected, rtol=1e-4, atol=1e-4)


def test_a_map_lies_where_its_token_does():
    model, *_ = build("vit")
    scores = torch.zeros(1, 7)
    scores[0, 1 + 5] = 1.0  # the last patch of 2 x 3, after the class token
    assert model.place(scores)[0].nonzero().tolist() == [[1, 2]]
    distilled, _, _ = build("deit")
    scores = torch.zeros(1, 5)  # class token and patches, as the head reads them
    scores[0, :2] = torch.tensor([3.0, 1.0])
    assert distilled.view().to_sequence(scores, None)[0].tolist() == [3.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_pooled_tokens_stand_in_the_middle_of_their_windows():
    length = pooled_length(pooled_length(64, 3, 2), 3, 2)
    values = spread_pooled(torch.arange(length, dtype=torch.float32)[None], (8, 8), 3, 2, 2)[0]
    assert values.shape == (64,)
    assert values[3].item() == 0.0  # the first one covers the patches 0 to 6
    assert values[7].item() == 1.0
    assert values[5].item() == 0.5


def test_a_constant_image_has_finite_strengths():
    model, images, _ = build("sot")
    for method in METHODS:
        (item, _) = explain_images(model, 0 * images, 0 * images, method, None, False)
        for strength in item.maps.values():
            assert np.isfinite(strength).all()
            assert strength.shape == (32, 32)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A checkpoint with class names, and images in folders of the same names."""
    folder = tmp_path_factory.mktemp("visualize")
    rng = np.random.default_rng(0)
    for name in ("<b>red", "blue"):
        (folder / name).mkdir()
        for number in range(2):
            Image.fromarray(rng.integers(0, 255, (40, 30, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")
    model = timm.create_model("sot_micro", num_classes=2)
    recipe = {"name": "sot_micro", "num_classes": 2, "head": None, "kwargs": {}}
    state = {"state_dict": model.state_dict(), "arch": "sot_micro"}
    torch.save(state, folder / "plain.pth")
    return folder, recipe


@pytest.fixture
def named(files, monkeypatch):
    folder, _ = files
    monkeypatch.setattr("vision.visualize.class_names", lambda trained: ["<b>red", "blue"])
    return folder


def run(folder, *words):
    main([str(folder / "<b>red"), str(folder / "blue"), "--checkpoint", str(folder / "plain.pth"), *map(str, words)])


def test_a_picture_and_a_page(named, tmp_path, capsys):
    run(named, "--output", tmp_path / "maps.png", tmp_path / "maps.html", "-j", "0")
    assert Image.open(tmp_path / "maps.png").size[0] > 500
    page = (tmp_path / "maps.html").read_text(encoding="utf-8")
    tags = Tags(page)
    assert tags.tags.count("img") == 4
    assert "b" not in tags.tags
    assert page.count('class="right"') + page.count('class="wrong"') == 4
    assert re.search("wrote .*maps.html", capsys.readouterr().err)


@pytest.mark.parametrize("method", ["relevance", "integrated_gradients"])
def test_a_class_and_a_method(named, tmp_path, method):
    run(named, "--class", "BLUE", "--method", method, "--limit", "1", "--output", tmp_path / "maps.html")
    page = (tmp_path / "maps.html").read_text(encoding="utf-8")
    assert page.count("<tr data-search") == 1
    assert '<td data-sort="blue">' in page


def test_the_check_prints_a_table(named, tmp_path, capsys):
    run(named, "--check", "--check-methods", "contributions", "grad_cam", "--output", tmp_path / "curves.png")
    output = capsys.readouterr().out
    assert output.startswith("4 images, mean ± standard error")
    assert [line.split("|")[1].strip() for line in output.splitlines()[4:]] == ["contributions", "grad_cam", "random"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_spectrum_is_drawn(named, tmp_path):
    run(named, "--spectrum", tmp_path / "spectrum.svg", "--output", tmp_path / "maps.png")
    assert "sot_micro, 4 images" in (tmp_path / "spectrum.svg").read_text()
    assert not (tmp_path / "maps.png").exists()


@pytest.mark.parametrize(
    "words, message",
    [
        (("--class", "green"), "no such class: --class green"),
        (("--output", "a.txt"), "unknown format: --output a.txt"),
        (("--check", "--output", "a.html"), "--check draws curves, not a page"),
        (("--spectrum", "a.html"), "unknown format: --spectrum a.html; give .png, .svg or .pdf"),
    ],
)
def test_mistakes(named, words, message):
    with pytest.raises(UsageError, match=message):
        run(named, *words)


@pytest.mark.parametrize("words", [["--check"], ["--spectrum", "spectrum.png"], []])
def test_no_image_that_can_be_read(named, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.png").write_text("none")
    options = ["--checkpoint", str(named / "plain.pth"), "--bad-images", "skip", "-j", "0"]
    with pytest.raises(UsageError, match="no image could be read: the command line; give others"):
        main(["bad.png", *options, *words])
    assert [path.name for path in tmp_path.iterdir()] == ["bad.png"]


def test_the_documentation_has_every_option_and_its_commands_are_right(monkeypatch):
    text = (REPOSITORY / "docs" / "visualization.md").read_text(encoding="utf-8")
    for method in METHODS:
        assert f"`{method}`" in text
    own = ("--method", "--class", "--limit", "--output", "--check", "--check-methods", "--spectrum", "--calibration")
    for option in own:
        assert option in text
    parsers = {"visualize": visualize_parser, "validate": validate_parser}
    commands = re.findall(r"^python vision/(\w+)\.py (.*)$", text, flags=re.MULTILINE)
    assert len(commands) == 4
    for program, words in commands:
        parse_args(parsers[program](), shlex.split(words))
