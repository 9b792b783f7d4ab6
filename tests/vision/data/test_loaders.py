"""Batches: the same for any number of workers, processes and restarts; bad files; mixing."""

import numpy as np
import pytest
import torch

from tests.vision.conftest import make_split
from vision.data import (
    AnyBatchMixup,
    BadImages,
    ImageError,
    ImageSet,
    create_eval_loader,
    create_train_loader,
    open_source,
)
from vision.data.augment import create_train_transform
from vision.data.sampling import TrainSampler

CONFIG = {
    "input_size": (3, 8, 8),
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "interpolation": "bicubic",
    "crop_pct": 1.0,
    "crop_mode": "center",
}


def train_batches(images, epoch=0, start=0, batch_size=4, **kwargs):
    dataset = ImageSet(open_source(str(images), "train"))
    loader = create_train_loader(dataset, CONFIG, batch_size, auto_augment="rand-m9-mstd0.5-inc1", **kwargs)
    loader.sampler.set_epoch(epoch, start)
    return list(loader)


def assert_equal_batches(first, second):
    assert len(first) == len(second)
    for (images, targets), (others, other_targets) in zip(first, second, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(targets, other_targets)


def test_last_partial_batch_is_kept(images):
    assert [len(targets) for _, targets in train_batches(images)] == [4, 4, 4, 3]
    assert [len(targets) for _, targets in train_batches(images, batch_size=100)] == [15]


def test_workers_do_not_change_the_batches(images):
    assert_equal_batches(train_batches(images), train_batches(images, workers=2))


def test_a_restart_within_an_epoch_goes_on_with_the_same_batches(images):
    assert_equal_batches(train_batches(images, 3)[2:], train_batches(images, 3, start=8))


def test_epochs_and_seeds_differ(images):
    first, other_epoch, other_seed = train_batches(images), train_batches(images, 1), train_batches(images, seed=1)
    assert not torch.equal(first[0][0], other_epoch[0][0])
    assert not torch.equal(first[0][0], other_seed[0][0])


def test_two_processes_have_together_the_batch_of_one(images):
    whole = train_batches(images, batch_size=4)
    parts = [train_batches(images, batch_size=2, rank=rank, world_size=2) for rank in range(2)]
    for (images_, targets), *both in zip(whole[:3], *(part[:3] for part in parts), strict=True):
        assert torch.equal(images_, torch.stack([part[0] for part in both], 1).flatten(0, 1))
        assert torch.equal(targets, torch.stack([part[1] for part in both], 1).flatten())


def test_processes_have_equal_shares():
    samplers = [TrainSampler(5, seed=0, rank=rank, world_size=3) for rank in range(3)]
    shares = [[key.index for key in sampler] for sampler in samplers]
    assert [len(share) for share in shares] == [len(sampler) for sampler in samplers] == [2, 2, 2]
    assert set().union(*shares) == set(range(5))


def test_repeated_augmentation():
    keys = list(TrainSampler(9, seed=0, num_repeats=3))
    assert np.unique([key.index for key in keys], return_counts=True)[1].tolist() == [3, 3, 3]
    assert len({key.seed for key in keys}) == 9


def test_loading_leaves_the_generators_alone(images):
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(1), np.random.rand()
    torch.manual_seed(5)
    np.random.seed(5)
    train_batches(images)
    assert torch.rand(1) == expected[0]
    assert np.random.rand() == expected[1]


def eval_batches(root, policy="error", **kwargs):
    bad_images = BadImages(policy)
    dataset = ImageSet(open_source(str(root), "val"), class_index=np.array([2, 0, 1]))
    return list(create_eval_loader(dataset, CONFIG, 4, bad_images=bad_images, **kwargs)), bad_images


def test_evaluation_in_order_with_the_models_classes(images):
    batches, _ = eval_batches(images)
    assert torch.cat([targets for _, targets in batches]).tolist() == [2, 2, 0, 0, 1, 1]
    assert batches[0][0].min() >= -1
    assert batches[0][0].max() <= 1


@pytest.mark.parametrize("world_size", [2, 4])
def test_evaluation_on_several_processes_has_no_padding(images, world_size):
    counts = [
        sum(len(targets) for _, targets in eval_batches(images, rank=rank, world_size=world_size)[0])
        for rank in range(world_size)
    ]
    assert sum(counts) == 6


@pytest.fixture
def broken(tmp_path):
    """6 images of 3 classes, the last one broken: timm would put the first one in its place."""
    make_split(tmp_path / "val", count=2)
    (tmp_path / "val" / "owl" / "1.png").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_file_is_named(broken, workers):
    with pytest.raises(ImageError, match=r"^cannot read an image: .*owl/1\.png \(the file is empty\); [^\n]*$"):
        eval_batches(broken, workers=workers)


def test_a_bad_file_is_left_out_and_counted_but_never_replaced(broken, caplog):
    batches, bad_images = eval_batches(broken, "skip")
    assert torch.cat([targets for _, targets in batches]).tolist() == [2, 2, 0, 0, 1]
    assert bad_images.count == 1
    assert "owl/1.png (the file is empty)" in caplog.text


def test_a_batch_of_bad_files_alone_is_empty(broken):
    (broken / "val" / "owl" / "0.png").write_bytes(b"text")
    batches, bad_images = eval_batches(broken, "skip")
    assert [len(targets) for _, targets in batches] == [4, 0]
    assert bad_images.count == 2


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_mixup_of_any_number_of_images(count, mode):
    np.random.seed(0)
    mixup = AnyBatchMixup(mixup_alpha=1.0, cutmix_alpha=1.0, mode=mode, label_smoothing=0.1, num_classes=4)
    images, targets = torch.rand(count, 3, 8, 8), torch.arange(count) % 4
    mixed, soft = mixup(images.clone(), targets)
    assert mixed.shape == images.shape
    assert soft.shape == (count, 4)
    torch.testing.assert_close(soft.sum(1), torch.ones(count))
    if count % 2:
        assert torch.equal(mixed[-1], images[-1])
        assert soft[-1].argmax() == targets[-1]
    if count > 2:
        assert not torch.equal(mixed[0], images[0])


def test_randaugment_that_keeps_no_bits(images):
    image = open_source(str(images), "train").image(0)
    transform = create_train_transform(CONFIG, auto_augment="rand-m10-n1-inc1")
    operations = [operation for operation in transform.transforms[-2].ops if operation.name == "PosterizeIncreasing"]
    assert len(operations) == 1
    operations[0].prob = 1.0
    assert operations[0].level_fn(10, None) == (0,)  # what Pillow refuses
    assert operations[0](image).size == image.size


def test_unknown_augmentation():
    with pytest.raises(ValueError, match="timm cannot build the augmentation"):
        create_train_transform(CONFIG, auto_augment="rand-x9")
