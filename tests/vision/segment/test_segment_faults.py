"""Mistakes of users and accidents of runs that once were silent, lost work, or ended in a traceback."""

import resource
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from sot_base.errors import UsageError
from tests.vision.conftest import assert_same_state, load
from tests.vision.segment.conftest import RECIPE, TINY, make_set, rows
from tests.vision.segment.test_segment_data import png
from vision.segment import build_segmenter, load_backbone, predict, validate
from vision.segment.files import read_class_names
from vision.segment.labels import LabelRules, read_annotation
from vision.segment.loss import SegmentationLoss
from vision.segment.predict import plan_results
from vision.segment.train import main
from vision.segment.transforms import RandomShortSide
from vision.training.task import create_optimizer
from vision.validate import main as validate_classifier

SHORT = ("-b", 2, "--steps", 4, "--val-steps", 2)


def test_a_value_beyond_the_classes_does_not_become_the_ignored_one():
    """256 is class 255, which is the value of pixels that do not count."""
    with pytest.raises(UsageError, match="the value 256, the classes are 1 to 4"):
        read_annotation(png(np.array([[1, 256]], dtype=np.uint16)), "a.png", (1, 2), LabelRules(4))


@pytest.mark.parametrize(
    "words, message",
    [
        (["--ignore-index", 4], "--ignore-index 4 is a class: they have values up to 4"),
        (["--num-classes", 255], "--ignore-index 255 is a class"),
        (["--ignore-index", "1e30"], "--ignore-index: must be at most 65535"),
        (["--mean", "nan", 0, 0], r"--mean: must be a number in \[0, 1\]"),
        (["--mean", 123.7, 116.3, 103.5], r"--mean: must be a number in \[0, 1\]"),
        (["--model-kwargs", "depth"], "--model-kwargs: expected name=value, got 'depth'"),
        (["--model-kwargs", "img_size=32"], "--model-kwargs img_size: segmentation sets it"),
        (["--model-kwargs", "embed_dim=wide"], "cannot build the model lvvit_t"),
        (["--model-kwargs", "embed_dim=0"], "cannot build the model lvvit_t"),
        (["--model", "vit_tiny_patch16_224.nonsense"], "cannot build the model .*Invalid pretrained tag"),
        (["--model", "qqq999"], "unknown model qqq999: .*; give one of timm.list_models"),
        (["--model", "vit_base_r26_s32_224"], "is not a plain vision transformer"),
    ],
)
def test_options_that_do_not_fit(shapes, train, tmp_path, words, message):
    with pytest.raises(UsageError, match=message):
        train(shapes, "--steps", 1, *words)
    assert not (tmp_path / "runs").exists()


def test_values_as_classes_need_one_value_less(shapes, train):
    assert load(train(shapes, "-b", 1, "--steps", 1, "--num-classes", 5, "--no-reduce-zero-label", "--ignore-index", 5))


@pytest.mark.parametrize("width", [37, 83, 149])
def test_annotation_and_image_keep_the_same_place(width):
    """The edge between two classes is where that of the colours is, on the average of its places."""
    gaps = []
    for edge in range(20, 80):
        image = torch.zeros(3, 8, 100)
        image[..., edge:] = 1
        transform = RandomShortSide(0, (1, 1))
        params = {"size": (8, width)}
        mask = transform.transform(tv_tensors.Mask(image[0].long()), params)
        assert isinstance(mask, tv_tensors.Mask)
        gaps.append((F.resize(image, [8, width], antialias=True)[0, 0].sum() - mask[0].sum()).item())
    assert abs(np.mean(gaps)) < 0.03
    assert np.abs(gaps).max() <= 0.51


def test_a_long_image_as_it_is():
    image = tv_tensors.Image(torch.zeros(3, 10, 200, dtype=torch.uint8))
    assert RandomShortSide(0, (1, 1))(image).shape == (3, 10, 200)
    assert RandomShortSide(0, (0.5, 0.5))(image).shape == (3, 5, 100)
    assert RandomShortSide(10, (1, 1))(image).shape == (3, 2, 40)


def test_class_names_that_are_no_utf8(tmp_path):
    (tmp_path / "names.txt").write_bytes("wall\ncafé\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"not UTF-8: .*names\.txt"):
        read_class_names(str(tmp_path), str(tmp_path / "names.txt"), 2)
    (tmp_path / "names.txt").write_text("wall\nsky\n", encoding="utf-8-sig")
    assert read_class_names(str(tmp_path), str(tmp_path / "names.txt"), 2) == ["wall", "sky"]


@pytest.mark.parametrize("dice", [0.0, 1.0])
def test_a_crop_without_a_pixel_that_counts_teaches_nothing(dice):
    logits = torch.randn(2, 4, 5, 5, requires_grad=True)
    loss = SegmentationLoss(dice_weight=dice)((logits, logits), torch.full((2, 5, 5), 255))
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


def test_the_first_norm_of_clip_learns_with_the_stem():
    kwargs = {"depth": 4, "embed_dim": 32, "num_heads": 2}
    model = build_segmenter({**RECIPE, "model": "vit_base_patch16_clip_224", "kwargs": kwargs})
    groups = create_optimizer(model, opt="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5).param_groups
    scales = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    backbone = model.encoder.backbone
    assert scales[id(backbone.norm_pre.weight)] == scales[id(backbone.patch_embed.proj.weight)] < 1


class TestAccidents:
    def test_a_bad_image_of_the_validation_does_not_lose_the_training(self, shapes, train, tmp_path):
        data = shutil.copytree(shapes, tmp_path / "data")
        image = data / "images" / "validation" / "1.png"
        image.write_bytes(b"no image")
        with pytest.raises(UsageError, match=r"validation/1\.png"):
            train(data, *SHORT, name="parts")
        assert load(tmp_path / "runs" / "parts")["progress"]["updates"] == 2
        shutil.copy(shapes / "images" / "validation" / "1.png", image)
        parts, straight = train(data, *SHORT, "--resume", name="parts"), train(data, *SHORT, name="straight")
        for key in ("state_dict", "optimizer", "progress", "saver"):
            assert_same_state(load(parts)[key], load(straight)[key])
        assert rows(parts) == rows(straight)

    @pytest.mark.parametrize("readable", [True, False])
    def test_a_validation_without_a_pixel_that_counts(self, train, tmp_path, readable):
        data = make_set(tmp_path / "data", {"training": 2, "validation": 1})
        if readable:
            Image.new("L", (64, 64)).save(data / "annotations" / "validation" / "0.png")
        else:
            (data / "images" / "validation" / "0.png").write_bytes(b"")
        with pytest.raises(UsageError, match=r"no pixel counts: .*images/validation"):
            train(data, "-b", 2, "--steps", 1, "--bad-images", "skip")

    def test_a_full_disk(self, shapes, train, tmp_path):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30000, limits[1]))
        try:
            with pytest.raises(OSError, match=r"File too large: .*last\.pth\.tar"):
                train(shapes, "-b", 2, "--steps", 2, "--max-steps", 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert [file.name for file in (tmp_path / "runs" / "run").iterdir()] == ["options.yaml"]

    def test_another_precision_and_learning_rate_after_an_interruption(self, shapes, train):
        words = ["-b", 2, "--steps", 4, "--val-steps", 3, "--layer-decay", 0.5]
        train(shapes, *words, "--max-steps", 2)
        folder = train(
            shapes, *words, "--amp", "--amp-dtype", "float16", "--lr", 1e-3, "--weight-decay", 0.2, "--resume"
        )
        assert load(folder)["amp_scaler"]["scale"] > 0
        assert float(rows(folder)[0]["lr"]) == pytest.approx(1e-3 / 4)
        groups = load(folder)["optimizer"]["param_groups"]
        assert {group["weight_decay"] for group in groups} == {0, 0.2}


class TestCheckpoints:
    def test_errors_name_the_file(self, shapes, train, trained, tmp_path):
        whole = trained / "model_best.pth.tar"
        with pytest.raises(UsageError, match=r"model_best\.pth\.tar \(it holds a whole UperNet"):
            load_backbone(build_segmenter(RECIPE), str(whole))
        torch.save({"state_dict": {"head.weight": torch.ones(1)}}, tmp_path / "head.pth")
        with pytest.raises(UsageError, match=r"--initial-checkpoint .*head\.pth: the checkpoint does not fit"):
            train(shapes, "--initial-checkpoint", tmp_path / "head.pth")
        torch.save({"state_dict": {"encoder.backbone.cls_token": "text"}}, tmp_path / "text.pth")
        with pytest.raises(UsageError, match=r"no tensors by name: .*text\.pth"):
            train(shapes, "--initial-checkpoint", tmp_path / "text.pth")
        with pytest.raises(UsageError, match="--model-kwargs depth; leave it out"):
            validate.main([str(shapes), "--checkpoint", str(whole), "--model-kwargs", "depth=2", "--device", "cpu"])
        with pytest.raises(UsageError, match=r"a segmentation model: .*model_best\.pth\.tar"):
            validate_classifier([str(shapes), "--checkpoint", str(whole), "--device", "cpu"])

    @pytest.mark.parametrize("change", [{"neck": ""}, {"drop_rate": 2.0**31}])
    def test_a_damaged_description_of_the_model(self, change, shapes, trained, tmp_path):
        checkpoint = load(trained)
        checkpoint["segmenter"].update(change)
        torch.save(checkpoint, tmp_path / "damaged.pth")
        with pytest.raises(UsageError, match=r"its model cannot be built \(.*damaged\.pth; the checkpoint is damaged"):
            validate.main([str(shapes), "--checkpoint", str(tmp_path / "damaged.pth"), "--device", "cpu", "-j", "0"])

    def test_precision_of_evaluation_is_the_one_that_is_asked_for(self, shapes, trained, monkeypatch):
        from vision.segment import load_trained

        seen = []
        original = load_trained.mixed_precision
        monkeypatch.setattr(
            load_trained,
            "mixed_precision",
            lambda device, amp, dtype: seen.append((amp, dtype)) or original(device, amp, dtype),
        )
        common = [str(shapes), "--checkpoint", str(trained / "last.pth.tar"), "--device", "cpu", "-j", "0"]
        validate.main([*common, "--amp", "--amp-dtype", "float16"])
        validate.main(common)
        assert seen == [(True, "float16"), (None, "bfloat16")]


class TestPredictions:
    def test_an_image_is_never_replaced(self, trained, shapes, tmp_path):
        image = tmp_path / "photos" / "0.png"
        image.parent.mkdir()
        shutil.copy(shapes / "images" / "training" / "0.png", image)
        before = image.read_bytes()
        words = ["--checkpoint", str(trained / "last.pth.tar"), "--device", "cpu", "--output", str(image.parent)]
        with pytest.raises(UsageError, match=r"take the place of an image: .*0\.png; choose another --output"):
            predict.main([str(image), *words])
        assert image.read_bytes() == before
        assert [*image.parent.iterdir()] == [image]

    def test_two_results_in_one_file(self, tmp_path):
        found = {name: tmp_path / f"{name}.jpg" for name in ("a", "a_color")}
        with pytest.raises(UsageError, match=r"two results in one file, .*a_color\.png"):
            plan_results(found, "out", ("", "_color"))
        assert [path.name for path in plan_results({"a": found["a"]}, "out", ("", "_color"))["a"]] == [
            "a.png",
            "a_color.png",
        ]


def test_a_mistake_leaves_nothing_behind(shapes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no images: .*images/nope"):
        main([str(shapes), *TINY, "--val-split", "nope"])
    assert not [*tmp_path.iterdir()]


class TestOlderCheckpoints:
    """Runs of before the common trainer had a ``state`` instead of ``progress`` and ``saver``."""

    def make_old(self, folder, batch_size):
        path = folder / "last.pth.tar"
        checkpoint = load(folder)
        progress, saver = checkpoint.pop("progress"), checkpoint.pop("saver")
        checkpoint["state"] = {
            "step": progress["updates"],
            "loss_sum": progress["loss_sum"] / batch_size,
            "loss_steps": progress["images"] // batch_size,
            "bad_images": progress["bad_images"],
            "best": -1.0 if saver["best_metric"] is None else saver["best_metric"],
            "history": progress["history"],
        }
        torch.save(checkpoint, path)

    @pytest.mark.parametrize("stop", [1, 2, 3])
    def test_they_continue_bitwise(self, shapes, train, stop):
        straight = train(shapes, *SHORT, name="straight")
        parts = train(shapes, *SHORT, "--max-steps", stop, name="parts")
        self.make_old(parts, 2)
        train(shapes, *SHORT, "--resume", name="parts")
        for key in ("state_dict", "optimizer", "progress"):
            assert_same_state(load(parts)[key], load(straight)[key])
        assert load(parts)["saver"]["best_metric"] == load(straight)["saver"]["best_metric"]
        assert rows(parts) == rows(straight)

    def test_an_evaluation_that_failed(self, shapes, train, tmp_path):
        data = shutil.copytree(shapes, tmp_path / "data")
        image = data / "images" / "validation" / "1.png"
        content = image.read_bytes()
        image.write_bytes(b"no image")
        with pytest.raises(UsageError, match=r"validation/1\.png"):
            train(data, *SHORT, name="parts")
        image.write_bytes(content)
        self.make_old(tmp_path / "runs" / "parts", 2)
        parts, straight = train(data, *SHORT, "--resume", name="parts"), train(data, *SHORT, name="straight")
        assert_same_state(load(parts)["progress"], load(straight)["progress"])
        assert rows(parts) == rows(straight)


@pytest.mark.parametrize(
    "saved, resumed, expected", [(2, 4, [2, 4]), (4, 2, [4]), (3, 2, [3, 4]), (1, 3, [1, 2, 3, 4]), (4, 3, [3, 4])]
)
def test_other_intervals_after_an_interruption(shapes, train, saved, resumed, expected):
    """A run that stopped after step 3 validates where the options now say, and never twice at one step."""
    words = ["-b", 2, "--steps", 4]
    train(shapes, *words, "--val-steps", saved, "--max-steps", 3)
    folder = train(shapes, *words, "--val-steps", resumed, "--resume")
    assert [int(row["step"]) for row in rows(folder)] == expected
    assert load(folder)["progress"]["updates"] == 4
