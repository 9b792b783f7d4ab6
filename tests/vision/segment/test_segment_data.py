"""Annotations, their errors, and augmentation of image and annotation together."""

import io
import shutil
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from sot_base.errors import UsageError
from tests.vision.segment.conftest import COLORS, make_pair, make_set
from vision.data import BadImages
from vision.data.dataset import BadImage, SampleKey
from vision.data.images import ImageError
from vision.data.sampling import TrainSampler
from vision.segment.dataset import PairSet, StreamSampler, eval_loader, normalize, train_loader
from vision.segment.files import PairSource, read_class_names
from vision.segment.labels import LabelRules, read_annotation
from vision.segment.palette import bit_palette, read_palette
from vision.segment.transforms import RandomClassCrop, RandomShortSide, short_side_size, train_transform

RULES = LabelRules(4)


def png(values, mode=None):
    buffer = io.BytesIO()
    Image.fromarray(values).convert(mode).save(buffer, "PNG") if mode else Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


class TestAnnotations:
    values = np.array([[0, 1, 2], [3, 4, 255]], dtype=np.uint8)

    def test_zero_does_not_count_and_classes_begin_at_one(self):
        found = read_annotation(png(self.values), "a.png", (2, 3), RULES)
        assert found.tolist() == [[255, 0, 1], [2, 3, 255]]
        assert found.dtype == np.int64
        assert RULES.to_values(np.array([0, 3])).tolist() == [1, 4]

    def test_values_are_classes(self):
        rules = LabelRules(5, reduce_zero_label=False)
        assert read_annotation(png(self.values), "a.png", (2, 3), rules).tolist() == [[0, 1, 2], [3, 4, 255]]
        assert rules.to_values(np.array([0, 3])).tolist() == [0, 3]

    def test_palette_and_sixteen_bits(self):
        image = Image.fromarray(self.values, "P")
        image.putpalette([7, 8, 9] * 256)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        expected = read_annotation(png(self.values), "a.png", (2, 3), RULES)
        assert np.array_equal(read_annotation(buffer.getvalue(), "a.png", (2, 3), RULES), expected)
        wide = png(np.array([[300, 1]], dtype=np.uint16))
        assert read_annotation(wide, "a.png", (1, 2), LabelRules(400, ignore_index=1000)).tolist() == [[299, 0]]

    @pytest.mark.parametrize(
        "data, size, message",
        [
            (png(values[:1]), (2, 3), "the annotation is 3x1 pixels, its image 3x2"),
            (png(np.full((2, 3), 5, np.uint8)), (2, 3), "the annotation has the value 5, the classes are 1 to 4"),
            (png(values, "RGB"), (2, 3), r"colours \(RGB\) instead of one channel"),
            (b"", (2, 3), "the annotation: the file is empty"),
            (b"text", (2, 3), "the annotation: it is not an image"),
            (png(values)[:-30], (2, 3), "the annotation: .*runcated"),
        ],
        ids=["size", "value", "colours", "empty", "text", "cut"],
    )
    def test_errors_name_the_file(self, data, size, message):
        with pytest.raises(ImageError, match=rf"^cannot read an image: a\.png .*{message}"):
            read_annotation(data, "a.png", size, RULES)


class TestFiles:
    def test_pairs_in_folders_and_tar(self, shapes, tmp_path):
        source = PairSource(str(shapes), "training")
        assert [name for name, _ in source.pairs] == [f"images/training/{i}.png" for i in range(4)]
        with tarfile.open(tmp_path / "set.tar", "w") as tar:
            tar.add(shapes, ".")
        packed = PairSource(str(tmp_path / "set.tar"), "training")
        assert packed.pairs == source.pairs
        for one, other in zip(PairSet(packed, RULES)[1], PairSet(source, RULES)[1], strict=True):
            assert torch.equal(one, other)

    def test_an_image_without_annotation(self, shapes, tmp_path):
        root = shutil.copytree(shapes, tmp_path / "set")
        (root / "annotations" / "training" / "2.png").unlink()
        message = r"an image without annotation: .*images/training/2\.png; expected .*annotations/training/2\.png"
        with pytest.raises(UsageError, match=message):
            PairSource(str(root), "training")

    def test_no_images_and_two_images_for_one_annotation(self, shapes, tmp_path):
        with pytest.raises(UsageError, match=r"no images: .*images/test; DIR must hold images/test/\*\.jpg"):
            PairSource(str(shapes), "test")
        root = shutil.copytree(shapes, tmp_path / "set")
        make_pair(1)[0].save(root / "images" / "training" / "1.jpg")
        with pytest.raises(UsageError, match=r"two images for one annotation: .*training/1\.png"):
            PairSource(str(root), "training")

    def test_class_names(self, tmp_path):
        assert read_class_names(str(tmp_path), None, 2) is None
        head = "Idx\tRatio\tTrain\tVal\tStuff\tName\n"
        rows = "1\t0.1\t5\t2\t1\twall\n2\t0.1\t5\t2\t1\tbuilding, edifice\n"
        (tmp_path / "objectInfo150.txt").write_text(head + rows)
        assert read_class_names(str(tmp_path), None, 2) == ["wall", "building"]
        assert read_class_names(str(tmp_path), None, 4) is None
        (tmp_path / "names.txt").write_text("sea\nsky\n\n")
        assert read_class_names(str(tmp_path), str(tmp_path / "names.txt"), 2) == ["sea", "sky"]
        with pytest.raises(UsageError, match=r"2 names for 3 classes: .*names\.txt"):
            read_class_names(str(tmp_path), str(tmp_path / "names.txt"), 3)
        with pytest.raises(UsageError, match="no such file of class names"):
            read_class_names(str(tmp_path), "nowhere.txt", 3)


def bad_set(shapes, folder):
    root = shutil.copytree(shapes, folder / "set")
    (root / "images" / "training" / "0.png").write_bytes(b"text")
    Image.new("L", (10, 10), 1).save(root / "annotations" / "training" / "2.png")
    return PairSet(PairSource(str(root), "training"), RULES)


class TestBadImages:
    def test_they_are_reported_and_never_replaced(self, shapes, tmp_path):
        dataset = bad_set(shapes, tmp_path)
        kinds = [isinstance(dataset[index], BadImage) for index in range(4)]
        assert kinds == [True, False, True, False]
        assert dataset[0].name.endswith("images/training/0.png")
        assert dataset[2].name.endswith("annotations/training/2.png")
        assert dataset[2].reason == "the annotation is 10x10 pixels, its image 64x64"

    def test_policies(self, shapes, tmp_path):
        dataset = bad_set(shapes, tmp_path)
        with pytest.raises(ImageError, match=r"images/training/0\.png \(it is not an image\)"):
            list(eval_loader(dataset, 0, 1, 0, torch.device("cpu"), BadImages("error")))
        bad = BadImages("skip")
        sizes = [len(images) for images, _ in eval_loader(dataset, 0, 1, 0, torch.device("cpu"), bad)]
        assert (sizes, bad.count) == ([0, 1, 0, 1], 2)

    def test_a_file_that_is_gone(self, shapes, tmp_path):
        root = shutil.copytree(shapes, tmp_path / "set")
        dataset = PairSet(PairSource(str(root), "training"), RULES)
        (root / "annotations" / "training" / "3.png").unlink()
        assert dataset[3].reason == "No such file or directory"


def colours_agree(image, classes):
    """Whether every pixel that counts has its class's colour: the grey ground or one of three."""
    table = torch.tensor([(105, 105, 105), *COLORS.values()])
    distance = (image[None].int() - table[:, :, None, None]).abs().sum(1)
    counted = classes != 255
    return (distance.argmin(0) == classes)[counted].float().mean().item()


class TestTransforms:
    @pytest.fixture
    def pair(self):
        image, annotation = make_pair(0)
        array = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return tv_tensors.Image(array), tv_tensors.Mask(torch.from_numpy(np.array(annotation)).long() - 1)

    @pytest.mark.parametrize("scale", [(1.0, 1.0), (2.0, 2.0), (0.5, 1.5)])
    def test_annotation_goes_where_the_image_goes(self, pair, scale):
        transform = train_transform(48, 64, scale, 0.9, 0.5, False, (0.4, 0.4, 0.4), 255)
        seen = set()
        for seed in range(12):
            torch.manual_seed(seed)
            image, classes = transform(*pair)
            assert image.shape == (3, 48, 48)
            assert classes.shape == (48, 48)
            assert colours_agree(image, classes) > 0.93
            seen.add(tuple(classes.flatten().tolist()))
        assert len(seen) == 12

    def test_an_annotation_left_behind_would_show(self, pair):
        image, classes = pair
        assert colours_agree(image, classes) == 1
        assert colours_agree(image.flip(-1), classes) < 0.8
        assert colours_agree(image.roll(16, -1), classes) < 0.8

    def test_flip(self, pair):
        image, classes = train_transform(64, 64, (1, 1), 1, 1.0, False, (0, 0, 0), 255)(*pair)
        assert torch.equal(image, pair[0].flip(-1))
        assert torch.equal(classes, pair[1].flip(-1))

    def test_colours_change_and_the_annotation_does_not(self, pair):
        torch.manual_seed(3)
        image, classes = train_transform(64, 64, (1, 1), 1, 0.0, True, (0, 0, 0), 255)(*pair)
        assert torch.equal(classes, pair[1])
        assert not torch.equal(image, pair[0])
        assert image.dtype == torch.uint8

    def test_a_small_image_is_filled_up(self, pair):
        image, classes = train_transform(80, 64, (1, 1), 1, 0.0, False, (0.5, 0.25, 1.0), 255)(*pair)
        assert torch.equal(image[:, :64, :64], pair[0])
        assert image[:, 70, 3].tolist() == image[:, 3, 70].tolist() == [128, 64, 255]
        assert (classes[64:] == 255).all()
        assert (classes[:, 64:] == 255).all()
        assert torch.equal(classes[:64, :64], pair[1])

    def test_no_class_takes_more_than_its_share_of_a_crop(self):
        mask = tv_tensors.Mask(torch.zeros(64, 64, dtype=torch.int64))
        mask[:16, :16] = 1
        mask[16:, 16:] = 255
        image = tv_tensors.Image(torch.zeros(3, 64, 64, dtype=torch.uint8))

        def shares(limit):
            crop = RandomClassCrop(16, limit, 255)
            found = []
            for seed in range(40):
                torch.manual_seed(seed)
                classes = crop(image, mask)[1]
                counts = classes[classes != 255].unique(return_counts=True)[1]
                found.append((counts.max() / counts.sum()).item() if len(counts) else 1.0)
            return found

        free, limited = (sum(share < 0.75 for share in shares(limit)) for limit in (1.0, 0.75))
        assert limited > 3 * free

    def test_sizes_of_the_short_side(self, pair):
        assert short_side_size((100, 200), 50) == (50, 100)
        assert short_side_size((100, 1000), 50) == (20, 200)
        assert short_side_size((100, 200), 0) == (100, 200)
        torch.manual_seed(0)
        sizes = [RandomShortSide(32, (0.5, 2.0))(*pair)[0].shape[-1] for _ in range(30)]
        assert 16 <= min(sizes) < 24
        assert 48 < max(sizes) <= 64
        assert RandomShortSide(0, (0.5, 0.5))(*pair)[1].shape == (32, 32)

    def test_the_seed_alone_says_how_an_image_changes(self, shapes):
        transform = train_transform(48, 64, (0.5, 2.0), 0.75, 0.5, True, (0.4, 0.4, 0.4), 255)
        dataset = PairSet(PairSource(str(shapes), "training"), RULES, transform)
        one, again, other = (dataset[SampleKey(1, seed)] for seed in (5, 5, 6))
        assert torch.equal(one[0], again[0])
        assert torch.equal(one[1], again[1])
        assert not torch.equal(one[0], other[0])


class TestStream:
    def test_it_is_the_epochs_in_a_row(self):
        found = list(StreamSampler(5, seed=3, start=0, stop=12))
        sampler, expected = TrainSampler(5, 3), []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            expected += list(sampler)
        assert found == expected[:12]
        assert list(StreamSampler(5, seed=3, start=7, stop=12)) == found[7:]

    def test_processes_share_it(self):
        whole = list(StreamSampler(5, 3, 4, 12))
        parts = [StreamSampler(5, 3, 4, 12, rank, 2) for rank in (0, 1)]
        assert [list(part) for part in parts] == [whole[::2], whole[1::2]]
        assert [len(part) for part in parts] == [4, 4]

    def test_steps_are_full_also_of_a_set_smaller_than_a_batch(self, shapes):
        transform = train_transform(32, 64, (1, 1), 1, 0.5, False, (0, 0, 0), 255)
        dataset = PairSet(PairSource(str(shapes), "validation"), RULES, transform)
        loader = train_loader(dataset, 5, range(2, 5), 0, 0, 1, 0, torch.device("cpu"), BadImages())
        assert [images.shape for images, _ in loader] == [(5, 3, 32, 32)] * 3

    def test_worker_processes_change_nothing(self, shapes):
        transform = train_transform(32, 64, (0.5, 2), 0.75, 0.5, True, (0, 0, 0), 255)
        dataset = PairSet(PairSource(str(shapes), "training"), RULES, transform)
        alone, helped = (
            list(train_loader(dataset, 2, range(3), 0, 0, 1, workers, torch.device("cpu"), BadImages()))
            for workers in (0, 1)
        )
        for one, other in zip(alone, helped, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


def test_normalize():
    images = torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 1, 2)
    found = normalize(images, (0.5, 0.0, 1.0), (0.5, 1.0, 2.0))
    torch.testing.assert_close(found[0, :, 0].tolist(), [[-1.0, 1.0], [0.0, 1.0], [-0.5, 0.0]])


class TestPalette:
    def test_bits_are_spread_over_the_channels(self):
        colors = bit_palette(256)
        assert colors[:5].tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [0, 0, 128]]
        assert colors[8].tolist() == [64, 0, 0]
        assert len({tuple(color) for color in colors.tolist()}) == 256

    def test_a_file(self, tmp_path):
        path = tmp_path / "palette.txt"
        path.write_text("#ff8000\n\n1 2 3\n4,5,6\n")
        assert read_palette(str(path), 3).tolist() == [[255, 128, 0], [1, 2, 3], [4, 5, 6]]
        with pytest.raises(UsageError, match=r"3 colours for 4 classes: .*palette\.txt"):
            read_palette(str(path), 4)
        path.write_text("#ff8000\n1 2 300\n")
        with pytest.raises(UsageError, match=r"no colour: .*palette\.txt, line 2, '1 2 300'"):
            read_palette(str(path), 2)
        with pytest.raises(UsageError, match="no such palette"):
            read_palette("nowhere.txt", 2)


def test_a_set_of_its_own_size(tmp_path):
    make_set(tmp_path / "wide", {"validation": 1}, size=48)
    assert PairSet(PairSource(str(tmp_path / "wide"), "validation"), RULES)[0][1].shape == (48, 48)
