"""Label maps move as their images do: pixels and maps that know their place must agree wherever both have gone."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import NAME_TO_OP, AugmentOp, RandAugment
from timm.data.transforms import RandomResizedCropAndInterpolation
from torch.nn.functional import adaptive_avg_pool2d
from torchvision import transforms

from sot_base.errors import UsageError
from vision.data.augment import create_train_transform
from vision.data.dataset import seeded
from vision.data.loaders import eval_transform
from vision.token_label.read_maps import LabelMap
from vision.token_label.targets import cell_weights, make_targets
from vision.token_label.transforms import FollowTransform

WIDTH, HEIGHT, GRID = 60, 40, (4, 5)
CONFIG = {"input_size": (3, 40, 40), "interpolation": "bilinear", "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
GEOMETRY = ("ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel", "Rotate")


def image_of_places():
    """Red and green tell the column and the row; blue is full, and none where something is filled in."""
    x, y = (np.arange(size) + 0.5 for size in (WIDTH, HEIGHT))
    red, green = np.meshgrid(x / WIDTH * 255, y / HEIGHT * 255)
    return Image.fromarray(np.stack([red, green, np.full_like(red, 255)], -1).round().astype(np.uint8))


def seen(image, frames):
    """For every patch: what its pixels say, what the map says (column, row, part that lies inside)."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) if isinstance(image, Image.Image) else image
    by_image = adaptive_avg_pool2d(pixels.float() / 255, GRID).flatten(1)
    y, x = torch.meshgrid((torch.arange(HEIGHT) + 0.5) / HEIGHT, (torch.arange(WIDTH) + 0.5) / WIDTH, indexing="ij")
    places = torch.stack([x, y, torch.ones_like(x)]).flatten(1)
    return by_image, places @ cell_weights(frames[None], GRID, (HEIGHT, WIDTH))[0].T


def assert_together(image, frames, tolerance=0.02):
    by_image, by_map = seen(image, frames)
    torch.testing.assert_close(by_map[2], by_image[2], rtol=0, atol=0.08)
    whole = (by_image[2] > 0.999) & (by_map[2] > 0.999)
    assert whole.any()
    torch.testing.assert_close(by_map[:2, whole], by_image[:2, whole], rtol=0, atol=tolerance)


def operation(name, magnitude=9, count=1, interpolation=Image.BILINEAR):
    names = [name] if isinstance(name, str) else name
    hparams = {"img_mean": (0, 0, 0), "interpolation": interpolation, "translate_const": 20}
    return RandAugment([AugmentOp(each, 1.0, magnitude, hparams) for each in names], count)


STEPS = {
    "random resized crop": RandomResizedCropAndInterpolation((40, 50), scale=(0.2, 0.8)),
    "horizontal flip": transforms.RandomHorizontalFlip(1.0),
    "vertical flip": transforms.RandomVerticalFlip(1.0),
    "resize": transforms.Compose([transforms.Resize((80, 50)), transforms.CenterCrop((40, 30))]),
    "centre crop": transforms.CenterCrop((21, 35)),
    "centre crop of a small image": transforms.CenterCrop((61, 35)),
    "squares": transforms.Compose([transforms.Resize(50), transforms.CenterCrop(50)]),
    **{name: operation(name) for name in GEOMETRY},
    "many": operation(GEOMETRY, magnitude=4, count=3),
}


class TestTogether:
    @pytest.mark.parametrize("name", STEPS)
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_every_step(self, name, seed):
        with seeded(seed):
            image, frames = FollowTransform(STEPS[name])(image_of_places())
        assert_together(image, frames)

    @pytest.mark.parametrize("name", STEPS)
    def test_a_map_left_behind_is_found(self, name):
        """The check above is able to fail: the same images with a map that has not moved do not agree."""
        with seeded(0):
            image, _ = FollowTransform(STEPS[name])(image_of_places())
        with pytest.raises(AssertionError):
            assert_together(image, torch.eye(2, 3)[None])

    @pytest.mark.parametrize("augmentation", [
        {"auto_augment": "rand-m9-n4-mstd0.5-inc1", "scale": (0.5, 1.0)},
        {"auto_augment": "original-mstd0.5", "vflip": 0.5},
        {"no_aug": True},
    ])  # fmt: skip
    def test_training(self, augmentation):
        """The whole transform of training, without the operations that change colours."""
        transform = create_train_transform(CONFIG, **augmentation)
        for part in transform.transforms:
            if isinstance(part, RandAugment):
                part.ops = [each for each in part.ops if each.name in GEOMETRY]
            elif hasattr(part, "policy"):
                part.policy = [[each for each in group if each.name in GEOMETRY] for group in part.policy]
        transform.transforms = [part for part in transform.transforms if not isinstance(part, transforms.ColorJitter)]
        follow, agreed = FollowTransform(transform), 0
        for seed in range(8):
            with seeded(seed):
                image, frames = follow(image_of_places())
            assert frames.shape == (follow.num_frames, 2, 3)
            assert image.dtype == torch.uint8
            by_image, by_map = seen(image, frames)
            whole = (by_image[2] > 0.999) & (by_map[2] > 0.999)
            torch.testing.assert_close(by_map[:2, whole], by_image[:2, whole], rtol=0, atol=0.03)
            torch.testing.assert_close(by_map[2], by_image[2], rtol=0, atol=0.12)
            agreed += int(whole.sum())
        assert agreed > 40

    @pytest.mark.parametrize("mode", ["center", "squash"])
    def test_evaluation(self, mode):
        follow = FollowTransform(eval_transform({**CONFIG, "crop_pct": 0.8, "crop_mode": mode}))
        assert_together(*follow(image_of_places()))


def test_labels_of_patches_are_those_of_their_pixels():
    """From a painted image to the target: a map of 4 x 6 classes, each place of it a colour of the image."""
    colours = np.random.default_rng(0).integers(40, 256, (24, 3), dtype=np.uint8)
    classes = np.arange(24).reshape(4, 6)
    image = Image.fromarray(colours[classes].repeat(10, 0).repeat(10, 1))
    label_map = LabelMap(torch.full((1, 1, 4, 6), 40.0), torch.from_numpy(classes)[None, None])
    follow = FollowTransform(operation(GEOMETRY, magnitude=6, count=2, interpolation=Image.NEAREST))
    pure = filled = 0
    for seed in range(12):
        with seeded(seed):
            moved, frames = follow(image)
        tokens = make_targets(torch.tensor([0]), label_map, frames[None], (10, 15), 24).tokens[0]
        patches = np.array(moved).reshape(10, 4, 15, 4, 3).swapaxes(1, 2).reshape(150, 16, 3)
        for patch, label in zip(patches, tokens, strict=True):
            if (patch == 0).all():
                assert label.max() < 0.2
                filled += 1
            elif (patch == patch[0]).all():
                assert (colours[label.argmax()] == patch[0]).all()
                pure += 1
    assert pure > 500
    assert filled > 50


@pytest.mark.parametrize("augmentation", [
    {"auto_augment": "rand-m9-n3-mstd0.5-inc1"},
    {"auto_augment": "original"},
    {"auto_augment": "3a", "grayscale_prob": 0.5, "gaussian_blur_prob": 0.5, "color_jitter_prob": 0.5},
    {"interpolation": "random", "vflip": 0.5},
])  # fmt: skip
def test_images_are_those_of_the_plain_transform(augmentation):
    transform = create_train_transform(CONFIG, **augmentation)
    follow = FollowTransform(transform)
    for seed in range(6):
        with seeded(seed):
            plain = transform(image_of_places())
        with seeded(seed):
            assert follow(image_of_places())[0].equal(plain)


@pytest.mark.parametrize("augmentation, name", [
    ({"auto_augment": "augmix-m3-w3"}, "AugMixAugment"),
    ({"train_crop_mode": "rkrc"}, "CenterCropOrPad"),
])  # fmt: skip
def test_what_cannot_be_followed_is_named(augmentation, name):
    with pytest.raises(UsageError, match=f"a label map cannot follow {name}"):
        FollowTransform(create_train_transform(CONFIG, **augmentation))
    with pytest.raises(UsageError, match="cannot follow RandomRotation"):
        FollowTransform(transforms.RandomApply([transforms.RandomRotation(9)]))


def test_all_of_timms_operations_are_known():
    FollowTransform(operation(list(NAME_TO_OP)))
    strange = operation("Rotate")
    strange.ops[0].name = "Twirl"
    with pytest.raises(UsageError, match="cannot follow Twirl"):
        FollowTransform(strange)
