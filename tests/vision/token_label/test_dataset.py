"""Images and their label maps, from files to targets on the device."""

import pickle

import numpy as np
import pytest
import torch
from timm.data.loader import PrefetchLoader
from torch.utils.data import DataLoader

from sot_base.errors import UsageError
from vision.data.augment import create_train_transform
from vision.data.dataset import BadImage, SampleKey
from vision.data.loaders import eval_transform
from vision.data.sources import ArraySource, open_source
from vision.token_label.dataset import TokenLabelSet
from vision.token_label.read_maps import LabelMap, open_label_maps
from vision.token_label.targets import TokenLabelTarget
from vision.token_label.write_maps import write_label_maps
from vision.training.token_label_loss import TokenLabelLoss

CLASSES = ["cat", "dog", "owl"]
CONFIG = {"input_size": (3, 8, 8), "interpolation": "bilinear", "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0}


def write_maps(folder, source, class_names=CLASSES):
    """Maps that say the class of the image in the left column, and the next class in the right one."""
    files = [source.key(index) for index in range(len(source.targets))]
    with write_label_maps(folder, class_names, files, (2, 2), 1) as writer:
        for index, label in enumerate(source.targets.tolist()):
            classes = torch.tensor([label, (label + 1) % len(class_names)]).expand(1, 2, 2)
            writer.put(index, LabelMap(torch.full((1, 2, 2), 30.0), classes))
    return open_label_maps(folder, class_names)


@pytest.fixture
def source(images):
    return open_source(str(images), "train")


def test_a_folder_of_images(source, tmp_path):
    dataset = TokenLabelSet(source, write_maps(tmp_path / "maps", source), eval_transform(CONFIG))
    image, sample = dataset[7]
    assert (image.shape, image.dtype, int(sample.truth)) == ((3, 8, 8), torch.uint8, 1)
    images, batch, bad = TokenLabelSet.collate([dataset[index] for index in (0, 7, 14)])
    assert (images.shape, bad) == ((3, 3, 8, 8), [])
    target = batch.to("cpu").targets((2, 2), 3)
    assert target.truth.argmax(-1).tolist() == [0, 1, 2]
    assert target.tokens.argmax(-1).tolist() == [[0, 1, 0, 1], [1, 2, 1, 2], [2, 0, 2, 0]]
    assert isinstance(target, TokenLabelTarget)
    assert TokenLabelLoss()(torch.randn(3, 3), target).isfinite()


def test_augmentation_is_a_function_of_the_seed(source, tmp_path):
    maps = write_maps(tmp_path / "maps", source)
    dataset = TokenLabelSet(source, maps, create_train_transform(CONFIG, hflip=0.5, auto_augment="rand-m9-n2"))
    seen = set()
    for seed in range(8):
        (image, first), (same, second) = dataset[SampleKey(3, seed)], dataset[SampleKey(3, seed)]
        assert image.equal(same)
        assert first.frames.equal(second.frames)
        seen.add(tuple(first.frames.flatten().tolist()))
    assert len(seen) == 8


def test_through_loading_processes_and_prefetching(source, tmp_path):
    dataset = TokenLabelSet(source, write_maps(tmp_path / "maps", source), create_train_transform(CONFIG))
    dataset = pickle.loads(pickle.dumps(dataset))
    loader = DataLoader(dataset, 4, num_workers=1, collate_fn=lambda samples: TokenLabelSet.collate(samples)[:2])
    count = 0
    for images, batch in PrefetchLoader(loader, device=torch.device("cpu")):
        target = batch.targets((4, 4), 3, smoothing=0.1)
        assert target.tokens.shape == (len(images), 16, 3)
        assert images.dtype == torch.float32
        count += len(images)
    assert count == len(source.targets)


def test_images_in_memory_go_by_their_number(tmp_path):
    pixels = np.zeros((4, 8, 8), dtype=np.uint8)
    source = ArraySource(pixels, [0, 1, 2, 1], CLASSES, "somewhere/train")
    moved = ArraySource(pixels, [0, 1, 2, 1], CLASSES, "elsewhere/train")
    dataset = TokenLabelSet(moved, write_maps(tmp_path / "maps", source), class_index=np.array([2, 1, 0]))
    image, sample = dataset[2]
    assert (image.size, int(sample.truth), sample.frames.tolist()) == ((8, 8), 0, [[[1, 0, 0], [0, 1, 0]]])


def test_bad_images_stay_bad(source, tmp_path, monkeypatch):
    dataset = TokenLabelSet(source, write_maps(tmp_path / "maps", source), eval_transform(CONFIG))
    good = dataset[1]

    def gone(index):
        raise FileNotFoundError(2, "gone")

    monkeypatch.setattr(source, "image", gone)
    bad = dataset[0]
    assert isinstance(bad, BadImage)
    images, batch, found = TokenLabelSet.collate([bad, good])
    assert (len(images), len(batch.truth), found) == (1, 1, [bad])
    images, batch, found = TokenLabelSet.collate([bad])
    assert (len(images), len(batch), found) == (0, 0, [bad])


def test_what_does_not_fit_is_named_at_once(source, images, tmp_path):
    maps = write_maps(tmp_path / "maps", open_source(str(images), "val"))
    with pytest.raises(UsageError, match=r"15 of 15 images have no label map: .*maps lacks cat/0\.png"):
        TokenLabelSet(source, maps)
    maps = write_maps(tmp_path / "more", source, ["cat", "dog", "owl", "ant", "bee"])
    dataset = TokenLabelSet(source, maps)
    with pytest.raises(UsageError, match="label maps of 5 classes for 3"):
        open_label_maps(tmp_path / "more", CLASSES)
    with pytest.raises(UsageError, match="cannot follow AugMixAugment"):
        dataset.transform = create_train_transform(CONFIG, auto_augment="augmix-m3-w3")
