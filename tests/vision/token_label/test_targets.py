"""From label maps to targets, against the published numbers and by hand."""

import json

import pytest
import torch
from torchvision.ops import roi_align

from tests.support import golden_arrays, golden_file
from vision.token_label.read_maps import LabelMap
from vision.token_label.targets import cell_weights, make_targets

INDEX = json.loads(golden_file("loss/index.json").read_text())["files"]
WHOLE = torch.eye(2, 3).repeat(4, 1, 1, 1)
NUM_CLASSES = 12


def frames_of(top, left, height, width):
    """Frames of a crop of fractions of an image."""
    zero = torch.zeros_like(top)
    rows = torch.stack([torch.stack([width, zero, left], -1), torch.stack([zero, height, top], -1)], -2)
    return rows.unsqueeze(1)


def published_frames(coords, side):
    """The published crops are transposed, and at least one place of the map wide and high."""
    top, left, height, width = coords.unbind(1)
    return frames_of(left, top, *(part.clamp(min=1 / side) for part in (width, height)))


def published_columns(target, smoothing):
    """The published (B, K, 2 + N); its smoothing leaves the maps' labels with a sum of 1 + smoothing / K."""
    labels = torch.cat([target.label[:, None], target.tokens], dim=1)
    sharp = (labels - smoothing / NUM_CLASSES) / (1 - smoothing)
    columns = [target.truth[:, None], labels + sharp * smoothing / NUM_CLASSES]
    return torch.cat(columns, dim=1).transpose(1, 2)


def mixed(target, lam):
    return target * lam + target.flip(0) * (1 - lam)


@pytest.mark.parametrize("case", INDEX["targets.npz"]["cases"], ids=lambda case: case["name"])
def test_published_targets(case):
    """The widened box of some tiny crops leaves the image, where nothing lies here: those images are left out."""
    arrays, smoothing, grid = golden_arrays("loss/targets.npz"), case["smoothing"], (case["label_size"],) * 2
    topk = arrays["topk"].flip(-1) if case["hflip"] else arrays["topk"]
    frames = published_frames(arrays[f"coords_{case['crop']}"], 8)
    label_map = LabelMap(topk[:, 0], topk[:, 1].long())
    target = make_targets(arrays["ground_truth"], label_map, frames, grid, NUM_CLASSES, smoothing)
    wanted = arrays[case["name"]]
    found = mixed(published_columns(target, smoothing), case["lam"])[..., : wanted.shape[-1]]
    inside = frames.sum(-1).flatten(1).amax(1) <= 1 + 1e-6
    assert inside.sum() == (1 if case["crop"] == "tiny" else 4)
    torch.testing.assert_close(found[inside], wanted[inside], rtol=0, atol=2e-6)


@pytest.mark.parametrize("lam", [1.0, 0.6])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_published_targets_without_maps(smoothing, lam):
    arrays, no_map = golden_arrays("loss/targets.npz"), torch.zeros(4, 1, 1, 1)
    label_map = LabelMap(no_map, no_map.long())
    target = make_targets(arrays["ground_truth"], label_map, WHOLE, (1, 1), NUM_CLASSES, smoothing)
    wanted = arrays[f"index_target_smooth{smoothing}_lam{lam}"]
    torch.testing.assert_close(mixed(target.truth, lam), wanted, rtol=0, atol=2e-6)


class TestByHand:
    def test_a_crop_of_the_top_half_sees_the_rows_of_the_top_half(self):
        """A map whose places know their row: the published crop would see all rows."""
        classes = torch.arange(4).view(1, 1, 4, 1).expand(1, 1, 4, 6)
        top_half = frames_of(*torch.tensor([[0.0], [0.0], [0.5], [1.0]]))
        label_map = LabelMap(torch.full(classes.shape, 30.0), classes)
        target = make_targets(torch.tensor([2]), label_map, top_half, (2, 3), 4)
        wanted = torch.tensor([0, 0, 0, 1, 1, 1])
        torch.testing.assert_close(target.tokens[0], torch.nn.functional.one_hot(wanted, 4).float())
        torch.testing.assert_close(target.label[0], torch.tensor([0.5, 0.5, 0.0, 0.0]), rtol=0, atol=1e-5)
        assert target.truth.tolist() == [[0, 0, 1, 0]]

    def test_weights_are_those_of_roi_align(self):
        box = torch.tensor([[0.0, 1.2, 2.1, 7.9, 4.4]])  # left, top, right, bottom in places of the map
        crop = frames_of(box[:, 2] / 5, box[:, 1] / 9, (box[:, 4] - box[:, 2]) / 5, (box[:, 3] - box[:, 1]) / 9)
        image = torch.randn(1, 3, 5, 9)
        wanted = roi_align(image, box - torch.tensor([0, 0.5, 0.5, 0.5, 0.5]), (2, 3), aligned=False)
        found = image.flatten(2) @ cell_weights(crop, (2, 3), (5, 9)).transpose(1, 2)
        torch.testing.assert_close(found, wanted.flatten(2))

    def test_images_of_a_batch_do_not_see_each_other(self):
        crops = torch.cat([frames_of(*part) for part in torch.rand(3, 4, 1) * 0.5])
        alone = torch.cat([cell_weights(crop[None], (3, 2), (8, 7)) for crop in crops])
        torch.testing.assert_close(cell_weights(crops, (3, 2), (8, 7)), alone)
        torch.testing.assert_close(alone.sum(-1), torch.ones(3, 6))

    def test_a_patch_outside_of_a_frame_has_the_uniform_label(self):
        moved = torch.eye(2, 3).repeat(1, 2, 1, 1)
        moved[0, 1, 0, 2] = -0.5  # the left half was filled, though the map has something there
        label_map = LabelMap(torch.full((1, 1, 2, 2), 30.0), torch.ones(1, 1, 2, 2, dtype=torch.long))
        tokens = make_targets(torch.tensor([0]), label_map, moved, (2, 2), 4).tokens[0]
        torch.testing.assert_close(tokens[0], torch.full((4,), 0.25))
        torch.testing.assert_close(tokens[1], torch.tensor([0.0, 1, 0, 0]))
        torch.testing.assert_close(tokens[::2], tokens[:1].expand(2, 4))

    @pytest.mark.parametrize("smoothing", [0.0, 0.3])
    def test_labels_are_probabilities(self, smoothing):
        scores, classes = torch.randn(4, 12, 3, 5).topk(3, dim=1)
        for part in make_targets(torch.arange(4), LabelMap(scores.half(), classes), WHOLE, (2, 2), 12, smoothing):
            torch.testing.assert_close(part.sum(-1), torch.ones(part.shape[:-1]))
            assert part.min() >= smoothing / 12 - 1e-6
