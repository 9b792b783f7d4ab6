"""Label maps from a classifier: what they hold, where it lies, parts and shards, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import vision.models  # noqa: F401  (registers the models)
from sot_base.errors import UsageError
from tests.vision.conftest import make_image, make_split
from tests.vision.test_distributed import torchrun
from vision import generate_label as module
from vision.data import eval_transform, open_source
from vision.token_label.read_maps import open_label_maps

CLASSES = ["cat", "dog", "owl"]
QUICK = ("--device", "cpu", "-j", "0")
VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
VIT_WORDS = ("--img-size", "16", "--model-kwargs", "patch_size=4", "embed_dim=16", "depth=1", "num_heads=2")


def generate(*words):
    module.main([str(word) for word in words])


def arrays(folder):
    """The names, scores and classes in a folder of maps."""
    files = json.loads((folder / "header.json").read_text())["files"]
    return files, np.load(folder / "scores.npy"), np.load(folder / "classes.npy")


def assert_same_maps(folder, other):
    files, scores, classes = arrays(folder)
    other_files, other_scores, other_classes = arrays(other)
    assert files == other_files
    np.testing.assert_allclose(scores, other_scores, rtol=1e-3, atol=1e-3)
    assert (classes == other_classes).mean() > 0.99


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """A convolutional network with weights of its own, as bare weights; and the words that say what it is."""
    torch.manual_seed(3)
    model = timm.create_model("test_resnet", num_classes=3).eval()
    nn.init.normal_(model.fc.weight, std=3)
    path = tmp_path_factory.mktemp("resnet") / "weights.pth"
    torch.save(model.state_dict(), path)
    return model, ("test_resnet", "--checkpoint", path, "--img-size", 64, *QUICK)


def save_colour_model(path, num_classes=2):
    """A vision transformer whose patches say their mean colour: class 0 red, class 1 blue."""
    model = timm.create_model("test_vit", num_classes=num_classes, global_pool="avg", **VIT)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    for channel in (0, 2):
        model.patch_embed.proj.weight.data[channel, channel] = 1.0
        model.head.weight.data[channel // 2, channel] = 5.0
    for layer in model.modules():
        if isinstance(layer, nn.LayerNorm):
            nn.init.ones_(layer.weight)
    torch.save(model.state_dict(), path)
    return ("test_vit", "--checkpoint", path, *VIT_WORDS, "global_pool=avg")


class TestMaps:
    def test_all_classes_in_both_layouts(self, images, resnet, tmp_path, capsys):
        """With all classes kept, the mean over the places is the model's own answer for the whole image."""
        model, words = resnet
        generate(images, *words, "--output", tmp_path / "maps", "--top-k", 5)
        assert "label maps of 15 images, top-3 of 3 classes on 2x2: " in capsys.readouterr().out
        header = json.loads((tmp_path / "maps" / "header.json").read_text())
        assert (header["classes"], header["grid"], header["top_k"]) == (CLASSES, [2, 2], 3)
        assert header["files"][:2] == ["cat/0.png", "cat/1.png"]
        assert [path.name for path in tmp_path.iterdir()] == ["maps"]

        config = timm.data.resolve_data_config({"img_size": 64, "crop_pct": 1.0, "crop_mode": "squash"}, model=model)
        transform = eval_transform(config, as_bytes=False)
        source, opened = open_source(str(images), "train"), open_label_maps(tmp_path / "maps", CLASSES)
        for index in (0, 7, 14):
            scores, classes = opened.read(source.key(index))
            with torch.no_grad():
                logits = model(transform(source.image(index))[None])[0]
            dense = torch.zeros(3, 2, 2).scatter_(0, classes, scores.float())
            torch.testing.assert_close(dense.mean((1, 2)), logits, rtol=2e-3, atol=2e-3)
            assert (scores[:-1] >= scores[1:]).all()

    def test_the_whole_image_and_every_place_where_it_is(self, tmp_path):
        """Red on the left, blue on the right, in images of another aspect ratio; nothing of them is cropped."""
        for name, low, high in (("red", 2, 30), ("blue", 16, 60)):  # widths of the red part, of the image
            picture = np.zeros((12, high, 3), np.uint8)
            picture[:, :low, 0], picture[:, low:, 2] = 200, 200
            (tmp_path / "data" / "train" / name).mkdir(parents=True)
            Image.fromarray(picture).save(tmp_path / "data" / "train" / name / "0.png")
        tall = np.zeros((40, 10, 3), np.uint8)
        tall[:30, :, 0], tall[30:, :, 2] = 200, 200
        Image.fromarray(tall).save(tmp_path / "data" / "train" / "red" / "tall.png")
        words = save_colour_model(tmp_path / "weights.pth")
        generate(tmp_path / "data", *words, "--output", tmp_path / "maps", "--top-k", 1, *QUICK)
        maps = open_label_maps(tmp_path / "maps", ["blue", "red"])  # the model's class 0 is the data's first: blue
        half = maps.read("blue/0.png").classes[0]
        assert half.tolist() == [[0, 1, 1, 1]] * 4  # 16 of 60 columns are red
        assert maps.read("red/tall.png").classes[0].tolist() == [[0] * 4] * 3 + [[1] * 4]
        assert (maps.read("red/0.png").classes[0][:, 1:] == 1).all()

    def test_a_checkpoint_of_training(self, images, trained, tmp_path):
        """Model, size and classes are the checkpoint's; the data's classes may be some of them, in their own order."""
        checkpoint = ("--checkpoint", trained / "last.pth.tar", *QUICK)
        generate(images, *checkpoint, "--output", tmp_path / "all", "--top-k", 3)
        _, scores, classes = arrays(tmp_path / "all")
        assert scores.shape == (15, 3, 4, 4)
        shutil.copytree(images / "train", tmp_path / "some" / "train")
        shutil.rmtree(tmp_path / "some" / "train" / "cat")
        generate(tmp_path / "some", *checkpoint, "--output", tmp_path / "two")
        assert json.loads((tmp_path / "two" / "header.json").read_text())["classes"] == ["dog", "owl"]
        _, two_scores, two_classes = arrays(tmp_path / "two")
        dense = {name: np.zeros((15, 3, 4, 4)) for name in ("all", "two")}
        np.put_along_axis(dense["all"], classes, scores, axis=1)
        np.put_along_axis(dense["two"][5:], two_classes + 1, two_scores, axis=1)
        np.testing.assert_allclose(dense["two"][5:, 1:], dense["all"][5:, 1:], rtol=1e-3, atol=1e-3)
        generate(images / "val", *checkpoint, "--output", tmp_path / "val", "--train-split", ".")
        assert len(arrays(tmp_path / "val")[0]) == 6

    def test_images_of_a_file_go_by_their_numbers(self, tmp_path):
        words = save_colour_model(tmp_path / "weights.pth", 10)
        generate("--dataset", "digits", "--config", _config(tmp_path), *words[1:], *QUICK)
        files, scores, _ = arrays(tmp_path / "maps")
        assert files == [str(index) for index in range(1437)]
        assert scores.shape == (1437, 2, 4, 4)

    def test_centred_scores_are_the_models_probabilities(self, images, resnet, tmp_path):
        """With 0 for the classes that are left out, the softmax of a place is that of the model, whatever its level."""
        model, (name, flag, _, *words) = resnet
        state = model.state_dict()
        state["fc.bias"] = state["fc.bias"] - 40
        torch.save(state, tmp_path / "low.pth")
        words = (name, flag, tmp_path / "low.pth", *words)
        generate(images, *words, "--output", tmp_path / "raw", "--top-k", 3)
        generate(images, *words, "--output", tmp_path / "centred", "--top-k", 1, "--scores", "centred")
        _, raw, classes = arrays(tmp_path / "raw")
        _, centred, best = arrays(tmp_path / "centred")
        assert raw.max() < -10
        assert (best == classes[:, :1]).all()
        logits = torch.from_numpy(raw.astype(np.float32))
        zeros = torch.zeros(15, 2, 2, 2)
        found = torch.cat([torch.from_numpy(centred.astype(np.float32)), zeros], dim=1).softmax(1)[:, 0]
        torch.testing.assert_close(found, logits.softmax(1)[:, 0], rtol=0, atol=0.02)  # raw scores are rounded to 1/32

    @pytest.mark.parametrize("words", [("--amp",), ("--channels-last",), ("--compile",), ("-b", 4), ("-j", 1)])
    def test_other_ways_to_the_same_maps(self, images, resnet, tmp_path, words, monkeypatch):
        compile_model = torch.compile
        monkeypatch.setattr(torch, "compile", lambda model: compile_model(model, backend="eager"))
        generate(images, *resnet[1], "--output", tmp_path / "plain", "--top-k", 3)
        generate(images, *resnet[1], "--output", tmp_path / "other", "--top-k", 3, *words)
        if "--amp" not in words:
            assert_same_maps(tmp_path / "plain", tmp_path / "other")
        else:
            first, second = (np.sort(arrays(tmp_path / name)[1], axis=1) for name in ("plain", "other"))
            assert not np.array_equal(first, second)
            np.testing.assert_allclose(first, second, rtol=0.1, atol=0.1)

    def test_the_published_format(self, images, resnet, tmp_path):
        generate(images, *resnet[1], "--output", tmp_path / "maps")
        generate(images, *resnet[1], "--output", tmp_path / "torch", "--format", "torch")
        content = torch.load(tmp_path / "torch" / "dog" / "3.pt", weights_only=True)
        assert (content.shape, content.dtype) == ((2, 3, 2, 2), torch.float16)
        first, second = (open_label_maps(tmp_path / name, CLASSES) for name in ("maps", "torch"))
        for name in arrays(tmp_path / "maps")[0]:
            assert first.read(name).scores.equal(second.read(name).scores)
            assert first.read(name).classes.equal(second.read(name).classes)


def _config(folder):
    (folder / "maps.yaml").write_text(f"output: {folder / 'maps'}\ntop-k: 2\nmodel: test_vit\n")
    return folder / "maps.yaml"


class TestParts:
    def labelled(self, monkeypatch, stop_after=None):
        """Count the images that are computed; interrupt the run after some batches."""
        counts, label = [], module.Teacher.label

        def counted(teacher, images):
            if len(counts) == stop_after:
                raise KeyboardInterrupt
            counts.append(len(images))
            return label(teacher, images)

        monkeypatch.setattr(module.Teacher, "label", counted)
        return counts

    def test_an_interrupted_run_goes_on(self, images, resnet, tmp_path, monkeypatch):
        words = (images, *resnet[1], "--part-size", 4, "-b", 3)
        generate(*words, "--output", tmp_path / "whole")
        with monkeypatch.context() as patch:
            self.labelled(patch, stop_after=3)
            with pytest.raises(KeyboardInterrupt):
                generate(*words, "--output", tmp_path / "maps")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["maps.parts", "whole"]
        assert sorted(path.name for path in (tmp_path / "maps.parts").iterdir()) == ["000000.npz", "000001.npz"]
        counts = self.labelled(monkeypatch)
        generate(*words[:-2], "-b", 7, "--output", tmp_path / "maps")
        assert sum(counts) == 15 - 8
        assert sorted(path.name for path in tmp_path.iterdir()) == ["maps", "whole"]
        assert_same_maps(tmp_path / "maps", tmp_path / "whole")

    def test_shards(self, images, resnet, tmp_path, monkeypatch, capsys):
        words = (images, *resnet[1], "--part-size", 4)
        generate(*words, "--output", tmp_path / "whole")
        generate(*words, "--output", tmp_path / "maps", "--shard", "1/2")
        assert "shard 1/2: 2 of 4 parts, 8 images: " in capsys.readouterr().out
        assert not (tmp_path / "maps").exists()
        generate(*words, "--output", tmp_path / "elsewhere", "--shard", "2/2")
        for path in (tmp_path / "elsewhere.parts").iterdir():
            path.rename(tmp_path / "maps.parts" / path.name)
        counts = self.labelled(monkeypatch)
        generate(*words, "--output", tmp_path / "maps")
        assert counts == []
        assert_same_maps(tmp_path / "maps", tmp_path / "whole")

    @pytest.mark.e2e
    @pytest.mark.slow
    def test_two_processes(self, images, resnet, tmp_path):
        words = (images, *resnet[1], "--part-size", 4)
        generate(*words, "--output", tmp_path / "whole")
        process = torchrun(tmp_path, "generate_label.py", *words, "--output", "maps")
        assert process.returncode == 0, process.stderr[-3000:]
        assert process.stdout.count("label maps of 15 images") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["maps", "whole"]
        assert_same_maps(tmp_path / "maps", tmp_path / "whole")

    @pytest.mark.parametrize("change, what", [
        (("--top-k", 1), "top-k and grid"),
        (("--img-size", 96), "image size, top-k and grid"),
        (("--part-size", 5), "images a part"),
        (("--amp",), "precision"),
        (("--scores", "centred"), "scores"),
        (("--interpolation", "nearest"), "interpolation"),
        (("--mean", 0.4), "mean and std"),
    ])  # fmt: skip
    def test_parts_of_other_options(self, images, resnet, tmp_path, change, what):
        words = (images, *resnet[1], "--part-size", 8, "--output", tmp_path / "maps")
        generate(*words, "--shard", "1/2")
        with pytest.raises(UsageError, match=rf"parts of other label maps: .*000000\.npz \({what}: not the same\)"):
            generate(*words, "--shard", "2/2", *change)  # even where its own parts are not there yet
        assert (tmp_path / "maps.parts" / "000000.npz").exists()

    def test_parts_of_another_checkpoint_or_data_set(self, images, resnet, tmp_path):
        words = (*resnet[1], "--part-size", 8, "--output", tmp_path / "maps")
        generate(images, *words, "--shard", "1/2")
        state = {name: value * 1.01 for name, value in resnet[0].state_dict().items()}
        torch.save(state, tmp_path / "other.pth")
        with pytest.raises(UsageError, match=r"\(weights: not the same\)"):
            generate(images, words[0], "--checkpoint", tmp_path / "other.pth", *words[3:])
        data = shutil.copytree(images, tmp_path / "data")
        make_image(0, 9).save(data / "train" / "cat" / "more.png")
        with pytest.raises(UsageError, match=r"\(images' names: not the same\)"):
            generate(data, *words)
        (data / "train" / "owl").rename(data / "train" / "zebra")
        with pytest.raises(UsageError, match=r"\(images' names, classes: not the same\)"):
            generate(data, *words)

    def test_a_damaged_part(self, images, resnet, tmp_path):
        words = (images, *resnet[1], "--part-size", 8, "--output", tmp_path / "maps")
        generate(*words, "--shard", "1/2")
        path = tmp_path / "maps.parts" / "000000.npz"
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(UsageError, match=r"cannot read a part of label maps: .*000000\.npz .*remove the file"):
            generate(*words)


class TestRefused:
    @pytest.fixture
    def data(self, images, tmp_path):
        return shutil.copytree(images, tmp_path / "data")

    def test_bad_images(self, data, resnet, tmp_path, capsys):
        for name in ("cat/0", "dog/4", "owl/3", "owl/4"):
            (data / "train" / f"{name}.png").write_bytes(b"text")
        words = (data, *resnet[1], "--part-size", 5, "-b", 2, "--output", tmp_path / "maps")
        with pytest.raises(UsageError, match=r"cannot read an image: .*cat/0\.png \(it is not an image\)"):
            generate(*words)
        generate(*words, "--bad-images", "skip", "--shard", "1/1")
        assert capsys.readouterr().out.endswith("bad_images: 4\n")
        with pytest.raises(UsageError, match=r"4 images are left out of the parts: .*cat/0\.png"):
            generate(*words)
        generate(*words, "--bad-images", "skip")
        assert "label maps of 11 images" in capsys.readouterr().out
        files = arrays(tmp_path / "maps")[0]
        assert len(files) == 11
        assert "dog/4.png" not in files
        generate(*words[:-1], tmp_path / "again", "--bad-images", "skip", "--part-size", 2)
        assert_same_maps(tmp_path / "maps", tmp_path / "again")

    def test_no_good_image(self, resnet, tmp_path):
        make_split(tmp_path / "data" / "train", count=1)
        for path in (tmp_path / "data").rglob("*.png"):
            path.write_bytes(b"")
        with pytest.raises(UsageError, match="no image can be read: "):
            generate(tmp_path / "data", *resnet[1], "--bad-images", "skip", "--output", tmp_path / "maps")
        assert not (tmp_path / "maps").exists()

    @pytest.mark.parametrize("words, message", [
        (("--crop-pct", 0.9), "covers the whole image: --crop-pct; leave it out"),
        (("--crop-mode", "center"), "covers the whole image: --crop-mode"),
        (("--shard", "0/2"), "must be I/N with I from 1 to N, got '0/2'"),
        (("--shard", "3/2"), "must be I/N"),
        (("--shard", "1"), "must be I/N"),
        (("--top-k", "0"), "an integer of at least 1"),
    ])  # fmt: skip
    def test_options(self, images, resnet, tmp_path, words, message):
        with pytest.raises(UsageError, match=message):
            generate(images, *resnet[1], "--output", tmp_path / "maps", *words)
        assert list(tmp_path.iterdir()) == []

    def test_an_output_that_is_there(self, images, resnet, tmp_path):
        with pytest.raises(UsageError, match="no place for the label maps: --output"):
            generate(images, *resnet[1])
        (tmp_path / "maps").mkdir()
        (tmp_path / "maps" / "notes.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"something is there already: .*maps; remove it"):
            generate(images, *resnet[1], "--output", tmp_path / "maps")
        (tmp_path / "maps" / "notes.txt").unlink()
        (tmp_path / "link").symlink_to(tmp_path / "maps")
        with pytest.raises(UsageError, match=r"something is there already: .*link; remove it"):
            generate(images, *resnet[1], "--output", tmp_path / "link")  # a folder cannot take its place
        generate(images, *resnet[1], "--output", tmp_path / "maps")
        assert len(arrays(tmp_path / "maps")[0]) == 15

    def test_classes_that_the_model_does_not_know(self, data, trained, tmp_path):
        make_split(data / "train", ["zebra"])
        with pytest.raises(UsageError, match="unknown class zebra"):
            generate(data, "--checkpoint", trained / "last.pth.tar", "--output", tmp_path / "maps", *QUICK)

    def test_scores_that_are_not_finite(self, images, resnet, tmp_path):
        state = resnet[0].state_dict()
        state["fc.weight"] = state["fc.weight"] * 1e9
        torch.save(state, tmp_path / "large.pth")
        words = (resnet[1][0], "--checkpoint", tmp_path / "large.pth", *resnet[1][3:])
        with pytest.raises(UsageError, match=r"not finite in half precision: .*cat/0\.png; compute without --amp"):
            generate(images, *words, "--output", tmp_path / "maps")

    def test_a_model_that_cannot_classify_places(self, images, tmp_path):
        model = timm.create_model("hvt_tiny_1", num_classes=3, img_size=32)
        torch.save(model.state_dict(), tmp_path / "hvt.pth")
        words = ("hvt_tiny_1", "--checkpoint", tmp_path / "hvt.pth", "--img-size", 32, *QUICK)
        with pytest.raises(UsageError, match="HVT pools its tokens to a sequence that is not a grid"):
            generate(images, *words, "--output", tmp_path / "maps")

    def test_what_the_published_format_cannot_hold(self, data, resnet, tmp_path, monkeypatch):
        words = (data, *resnet[1], "--output", tmp_path / "maps", "--format", "torch")
        with monkeypatch.context() as patch:
            patch.setattr(module, "HALF_LIMIT", 1)
            with pytest.raises(UsageError, match="3 classes are too many for --format torch"):
                generate(*words)
        make_image(0, 0).save(data / "train" / "cat" / "0.jpg")
        with pytest.raises(UsageError, match=r"would share a file of --format torch: .*cat/0\.jpg and cat/0\.png"):
            generate(*words)
        assert not (tmp_path / "maps").exists()
