"""Metrics against scikit-learn, windows, scales and mirrored images, and the loss."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import confusion_matrix, jaccard_score
from torch import nn

from vision.segment import ConfusionMatrix, Inference
from vision.segment.inference import slide_logits, window_starts
from vision.segment.loss import SegmentationLoss


class Pixelwise(nn.Module):
    """Logits of each pixel from its colour alone, so that windows and the whole agree."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.sizes = nn.Conv2d(3, 4, 1), []

    def forward(self, x):
        self.sizes.append(tuple(x.shape[-2:]))
        return self.conv(x)


class Mean(nn.Module):
    """Logits that are the mean of the window: overlapping windows disagree."""

    def forward(self, x):
        return x.mean((-2, -1), keepdim=True).expand_as(x)


class TestMetrics:
    @pytest.fixture
    def labels(self):
        generator = np.random.default_rng(0)
        true = generator.integers(0, 4, (3, 20, 30))
        predicted = np.where(generator.random(true.shape) < 0.6, true, generator.integers(0, 5, true.shape))
        true[:, :3] = 255
        return true, predicted

    def test_as_scikit_learn(self, labels):
        true, predicted = labels
        confusion = ConfusionMatrix(6)
        for one, other in zip(predicted, true, strict=True):
            confusion.update(torch.from_numpy(one), torch.from_numpy(other))
        counted = true != 255
        expected = confusion_matrix(true[counted], predicted[counted], labels=range(6))
        assert np.array_equal(confusion.counts.numpy(), expected)
        iou = 100 * jaccard_score(true[counted], predicted[counted], labels=range(5), average=None)
        rows = confusion.per_class()
        assert [row["iou"] for row in rows[:5]] == pytest.approx(iou.tolist())
        assert rows[5] == {"pixels": 0, "iou": None, "accuracy": None}
        metrics = confusion.compute()
        assert metrics["miou"] == pytest.approx(iou.mean())  # class 4, which is predicted alone, counts with 0
        assert metrics["pixel_accuracy"] == pytest.approx(100 * (true == predicted)[counted].mean())
        recall = expected.diagonal()[:4] / expected.sum(1)[:4]
        assert metrics["mean_accuracy"] == pytest.approx(100 * recall.mean())

    def test_no_pixel_counts(self):
        confusion = ConfusionMatrix(3)
        confusion.update(torch.zeros(2, 2, dtype=torch.int64), torch.full((2, 2), 255))
        assert confusion.compute() == {"miou": 0, "pixel_accuracy": 0, "mean_accuracy": 0}


class TestWindows:
    @pytest.mark.parametrize(
        "length, window, stride, expected",
        [(512, 512, 341, [0]), (300, 512, 341, [0]), (513, 512, 341, [0, 1]), (900, 512, 341, [0, 341, 388])],
    )
    def test_where_they_begin(self, length, window, stride, expected):
        assert window_starts(length, window, stride) == expected

    def test_one_window_is_the_whole(self):
        model, x = Pixelwise(), torch.randn(2, 3, 20, 30)
        assert torch.equal(slide_logits(model, x, 40, 10), model.conv(x))
        assert model.sizes == [(20, 30)]

    def test_windows_of_a_pixelwise_model_are_the_whole(self):
        model, x = Pixelwise(), torch.randn(2, 3, 50, 41)
        torch.testing.assert_close(slide_logits(model, x, 20, 13), model.conv(x))
        assert set(model.sizes) == {(20, 20)}

    def test_overlaps_are_averaged(self):
        x = torch.zeros(1, 3, 4, 6)
        x[..., 4:] = 3.0
        found = slide_logits(Mean(), x, 4, 2)  # windows at 0 and 2, their means 0 and 1.5
        assert found[0, 0].tolist() == [[0.0, 0.0, 0.75, 0.75, 1.5, 1.5]] * 4


class TestInference:
    def test_sizes(self):
        model, x = Pixelwise(), torch.randn(1, 3, 40, 60)
        found = Inference(short_side=20, scales=(0.5, 1.0, 2.0))(model, x)
        assert model.sizes == [(10, 15), (20, 30), (40, 60)]
        assert found.shape == (1, 4, 40, 60)
        torch.testing.assert_close(found.sum(1), torch.ones(1, 40, 60))

    def test_whole_image_at_its_own_size(self):
        model, x = Pixelwise(), torch.randn(1, 3, 40, 60)
        torch.testing.assert_close(Inference()(model, x), model.conv(x).softmax(1))

    def test_scales_and_mirrors_of_a_constant_model_change_nothing(self):
        model = nn.Conv2d(3, 4, 1)
        nn.init.zeros_(model.weight)
        x = torch.randn(1, 3, 33, 47)
        expected = model.bias.softmax(0).view(1, 4, 1, 1).expand(1, 4, 33, 47)
        found = Inference(16, 10, 20, (0.5, 0.75, 1.0, 1.25, 1.5, 1.75), True)(model, x)
        torch.testing.assert_close(found, expected)

    def test_mirrored_logits_are_turned_back(self):
        ramp = torch.arange(6.0).expand(1, 1, 4, 6)

        class Places(nn.Module):
            def forward(self, x):
                return torch.cat([ramp, x[:, :1]], 1)

        x = torch.randn(1, 3, 4, 6)
        found = Inference(flip=True)(Places(), x)
        one = torch.cat([ramp, x[:, :1]], 1).softmax(1)
        other = torch.cat([ramp.flip(-1), x[:, :1]], 1).softmax(1)
        torch.testing.assert_close(found, (one + other) / 2)

    def test_probabilities_not_logits_are_averaged_over_scales(self):
        class Steps(nn.Module):
            def forward(self, x):
                value = 2.0 if x.shape[-1] == 8 else 0.0
                return torch.stack([torch.full_like(x[:, 0], value), torch.zeros_like(x[:, 0])], 1)

        found = Inference(scales=(1.0, 2.0))(Steps(), torch.randn(1, 3, 8, 8))
        expected = (torch.tensor([2.0, 0.0]).softmax(0) + 0.5) / 2
        torch.testing.assert_close(found[0, :, 3, 3], expected)


class TestLoss:
    logits, aux = torch.randn(2, 4, 5, 6), torch.randn(2, 4, 5, 6)
    classes = torch.randint(0, 4, (2, 5, 6))
    classes[:, :2] = 255

    def test_both_heads(self):
        one, other = (F.cross_entropy(x, self.classes, ignore_index=255) for x in (self.logits, self.aux))
        torch.testing.assert_close(SegmentationLoss()((self.logits, self.aux), self.classes), one + 0.4 * other)
        torch.testing.assert_close(SegmentationLoss(aux_weight=0)((self.logits, self.aux), self.classes), one)
        torch.testing.assert_close(SegmentationLoss()(self.logits, self.classes), one)

    def test_dice(self):
        perfect = 40.0 * F.one_hot(self.classes % 255 % 4, 4).permute(0, 3, 1, 2).float()
        plain, dice = (SegmentationLoss(dice_weight=weight) for weight in (0.0, 2.0))
        assert (dice(perfect, self.classes) - plain(perfect, self.classes)).item() == pytest.approx(0, abs=1e-4)
        assert (dice(-perfect, self.classes) - plain(-perfect, self.classes)).item() > 1

    def test_no_pixel_counts(self):
        logits = self.logits.clone().requires_grad_()
        loss = SegmentationLoss()(logits, torch.full((2, 5, 6), 255))
        loss.backward()
        assert loss.item() == 0
        assert (logits.grad == 0).all()
