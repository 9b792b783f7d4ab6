"""Labels of patches mix as the pixels of their images do."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import adaptive_avg_pool2d, one_hot

from tests.support import golden_arrays, golden_file
from vision.data.augment import AnyBatchMixup
from vision.token_label.mixup import TokenLabelMixup, mix_targets
from vision.token_label.targets import TokenLabelTarget

COLLATE = json.loads(golden_file("loss/index.json").read_text())["files"]["collate.npz"]["cases"]
GRID = (3, 2)


def pure_batch(count):
    """Each image is of one class, and full in the channel of its class."""
    labels = one_hot(torch.arange(count), count).float()
    images = labels.view(count, count, 1, 1).expand(-1, -1, 12, 8).clone()
    return images, TokenLabelTarget(labels, labels, labels.unsqueeze(1).expand(-1, 6, -1))


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("alphas", [(1.0, 0.0), (0.0, 1.0), (0.8, 1.0)])
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_labels_are_what_is_in_the_pixels(mode, alphas, count):
    mixup, changed = TokenLabelMixup(GRID, mixup_alpha=alphas[0], cutmix_alpha=alphas[1], mode=mode), 0
    for seed in range(4):
        np.random.seed(seed)
        images, target = mixup(*pure_batch(count))
        by_patch = adaptive_avg_pool2d(images, GRID).flatten(2).transpose(1, 2)
        torch.testing.assert_close(target.tokens, by_patch)
        for part in (target.truth, target.label):
            torch.testing.assert_close(part, images.mean(dim=(2, 3)))
        changed += int((by_patch.amax(-1) < 0.999).any())
        if count % 2:
            assert target.tokens[-1, :, -1].eq(1).all()
    assert changed or count == 1


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("count", [5, 6])
def test_images_and_class_labels_are_those_of_plain_mixup(mode, count):
    words = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "mode": mode}
    plain = AnyBatchMixup(**words, num_classes=count, label_smoothing=0.0)
    images = torch.rand(count, 3, 12, 8)
    for seed in range(4):
        np.random.seed(seed)
        wanted, labels = plain(images.clone(), torch.arange(count))
        np.random.seed(seed)
        found, target = TokenLabelMixup(GRID, **words)(images.clone(), pure_batch(count)[1])
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        torch.testing.assert_close(target.truth, labels)


@pytest.mark.parametrize("case", COLLATE, ids=lambda case: case["name"])
def test_published_class_labels(case):
    """Class labels are the published ones; so are the patches' unless a box is cut, which stays a box here."""
    arrays = golden_arrays("loss/collate.npz")
    columns, wanted = (arrays[f"{name}.target"].transpose(1, 2) for name in ("off", case["name"]))
    share = torch.full((4, 1, 12, 12), case["lam_used"])
    if case["use_cutmix"]:
        top, bottom, left, right = case["box_yl_yh_xl_xh"]
        share.fill_(1.0)[..., top:bottom, left:right] = 0.0
    target = TokenLabelTarget(columns[:, 0], columns[:, 1], columns[:, 2:])
    found = mix_targets(target, share, (3, 3), torch.arange(4).flip(0))
    torch.testing.assert_close(found.truth, wanted[:, 0], rtol=0, atol=2e-6)
    torch.testing.assert_close(found.label, wanted[:, 1], rtol=0, atol=2e-6)
    if not case["use_cutmix"]:
        torch.testing.assert_close(found.tokens, wanted[:, 2:], rtol=0, atol=2e-6)
        return
    outside = torch.ones(3, 3, dtype=torch.bool)
    outside[2, 0] = False
    torch.testing.assert_close(found.tokens[:, outside.flatten()], target.tokens[:, outside.flatten()])
    torch.testing.assert_close(found.tokens[:, 6], 0.5 * target.tokens[:, 6] + 0.5 * target.tokens.flip(0)[:, 6])
