"""Scores of places: their mean is what the head says of the image, they lie where they belong, each layout is read."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import vision.models  # noqa: F401  (registers the models)
from sot_base.errors import UsageError
from vision.models.attach import attach_head
from vision.models.head_mixin import count_prefix_tokens
from vision.token_label.place_scores import PlaceScores, token_grid

CPU = torch.device("cpu")
TINY_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
TINY_SWIN = {"img_size": 32, "window_size": 2, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2)}


def create(name, **kwargs):
    """A model with 5 classes, whose logits are of the order of 1."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **kwargs).eval()
    return spread(model)


def spread(model):
    layers = model.get_classifier()
    for layer in layers if isinstance(layers, tuple | nn.ModuleList) else [layers]:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    return model


@torch.no_grad()
def scores_and_logits(model, size=(64, 96)):
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    return PlaceScores(model)(images), model(images), model.forward_features(images)


@pytest.mark.parametrize("name, kwargs, size, grid", [
    ("test_resnet", {}, (64, 96), (2, 3)),
    ("test_efficientnet", {}, (64, 96), (2, 3)),
    ("swin_tiny_patch4_window7_224", TINY_SWIN, (32, 32), (4, 4)),
    ("test_vit", {**TINY_VIT, "global_pool": "avg", "fc_norm": False}, (32, 32), (4, 4)),
    ("test_vit2", {**TINY_VIT, "img_size": (32, 48), "fc_norm": False}, (32, 48), (4, 6)),
    ("mixer_s32_224", {"img_size": 64}, (64, 64), (2, 2)),
])  # fmt: skip
def test_the_mean_of_the_places_is_the_image(name, kwargs, size, grid):
    model = create(name, **kwargs)
    scores, logits, _ = scores_and_logits(model, size)
    assert scores.shape == (2, 5, *grid)
    assert logits.std() > 0.01
    torch.testing.assert_close(scores.mean((2, 3)), logits, rtol=1e-5, atol=1e-5)
    assert scores.std((2, 3)).max() > 1e-3
    assert PlaceScores(model).find_grid((3, *size), 5, CPU) == grid


@pytest.mark.parametrize("name, norm", [("test_convnext", "head.norm"), ("test_vit", "fc_norm")])
def test_a_norm_after_the_pooling_acts_on_every_place(name, norm):
    kwargs = {**TINY_VIT, "global_pool": "avg"} if name == "test_vit" else {}
    model = create(name, **kwargs)
    nn.init.normal_(model.get_submodule(norm).weight)
    scores, logits, features = scores_and_logits(model, (32, 32) if kwargs else (64, 96))
    if kwargs:
        expected = model.head(model.fc_norm(features[:, model.num_prefix_tokens :])).transpose(1, 2)
    else:
        places = features.flatten(2).transpose(1, 2)
        expected = model.head.fc(F.layer_norm(places, places.shape[2:], *_weights(model.head.norm))).transpose(1, 2)
    torch.testing.assert_close(scores.flatten(2), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.forward_head(features), logits)
    assert (scores.mean((2, 3)) - logits).abs().max() > 1e-2


def _weights(norm):
    return norm.weight, norm.bias, norm.eps


@pytest.mark.parametrize("name, kwargs", [
    ("test_vit", {}),
    ("test_vit", {"reg_tokens": 3}),
    ("deit_tiny_patch16_224", {}),
    ("deit_tiny_distilled_patch16_224", {}),
    ("cait_xxs24_224", {"depth_token_only": 1}),
])  # fmt: skip
def test_prefix_tokens_are_dropped(name, kwargs):
    """A head that reads the class token reads each patch in its stead; two such heads are averaged."""
    model = create(name, **{**TINY_VIT, **kwargs})
    scores, _, features = scores_and_logits(model, (32, 32))
    words = features[:, count_prefix_tokens(model) :]
    assert words.shape[1] == 16
    heads = [model.head, model.head_dist] if hasattr(model, "head_dist") else [model.head]
    expected = sum(head(words) for head in heads) / len(heads)
    torch.testing.assert_close(scores.flatten(2), expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_layers_after_the_pooling():
    model = create("mobilenetv3_small_050")
    scores, _, features = scores_and_logits(model, (64, 64))
    torch.testing.assert_close(scores[:, :, 1, 0], model.forward_head(features[:, :, 1:2, :1]), rtol=1e-4, atol=1e-5)


def test_attention_that_pools():
    """Of equal tokens attention gives one of them, through its own layers."""
    model = create("test_vit3", **TINY_VIT)
    scores, _, features = scores_and_logits(model, (32, 32))
    place = features[:, model.num_prefix_tokens + 6][:, None]
    torch.testing.assert_close(scores[:, :, 1, 2], model.forward_head(place.repeat(1, 9, 1)), rtol=1e-4, atol=1e-5)


class TestSecondOrderHeads:
    def test_lv_vit_uses_its_classifier_of_patches(self):
        model = create("lvvit_t", img_size=32, embed_dim=24, depth=1)
        scores, _, features = scores_and_logits(model, (32, 32))
        assert scores.shape == (2, 5, 2, 2)
        torch.testing.assert_close(scores.flatten(2), model.head.dense_fc(features[:, 1:]).transpose(1, 2))

    def test_places_are_normalised_as_the_class_token_is(self):
        model = attach_head(create("test_vit", **TINY_VIT), num_heads=2, q_dim=4, feature_norm="batch_norm")
        nn.init.normal_(model.head.cls_norm.running_mean)
        scores, _, features = scores_and_logits(spread(model), (32, 32))
        head, words = model.head, features[:, model.num_prefix_tokens :]
        normalised = (words - head.cls_norm.running_mean) / (head.cls_norm.running_var + head.cls_norm.eps).sqrt()
        torch.testing.assert_close(scores.flatten(2), head.cls_fc(normalised).transpose(1, 2), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("fusion", ["sum_fc", "sum_loss"])
    def test_covariances_leave_the_classifier_of_the_class_token(self, fusion):
        model = spread(attach_head(create("test_vit", **TINY_VIT), fusion=fusion, num_heads=2, q_dim=4))
        scores, _, features = scores_and_logits(model, (32, 32))
        expected = model.head.cls_fc(features[:, model.num_prefix_tokens :]).transpose(1, 2)
        torch.testing.assert_close(scores.flatten(2), expected)

    @pytest.mark.parametrize("name, kwargs, size", [
        ("test_resnet", {}, (64, 96)),
        ("swin_tiny_patch4_window7_224", TINY_SWIN, (32, 32)),
        ("test_vit2", {**TINY_VIT, "class_token": False}, (32, 32)),
    ])  # fmt: skip
    def test_the_mean_of_words(self, name, kwargs, size):
        model = spread(attach_head(create(name, **kwargs), pooling="gap"))
        scores, logits, _ = scores_and_logits(model, size)
        torch.testing.assert_close(scores.mean((2, 3)), logits, rtol=1e-5, atol=1e-5)

    def test_class_token_and_mean_together(self):
        model = spread(attach_head(create("test_vit", **TINY_VIT), pooling="gap", fusion="sum_fc"))
        scores, _, features = scores_and_logits(model, (32, 32))
        place = features[:, model.num_prefix_tokens + 5]
        torch.testing.assert_close(scores[:, :, 1, 1], model.head.cls_fc(place) + model.head.word_fc(place))

    def test_covariances_alone(self):
        model = attach_head(create("test_resnet"), num_heads=2, q_dim=4)
        with pytest.raises(UsageError, match=r"fusion is words and its pooling mgcrp; use a timm classifier, .* gap"):
            PlaceScores(model)


class TestRefused:
    def test_pooled_sequences(self):
        with pytest.raises(UsageError, match="HVT pools its tokens to a sequence that is not a grid"):
            PlaceScores(create("hvt_tiny_1", img_size=32))

    def test_class_tokens_alone(self):
        with pytest.raises(UsageError, match="PoolingVisionTransformer gives 0 tokens, which do not form a grid"):
            scores_and_logits(create("pit_ti_224"), (224, 224))

    def test_several_maps(self):
        with pytest.raises(UsageError, match="CrossVit gives several feature maps"):
            PlaceScores(create("crossvit_9_240"))(torch.zeros(1, 3, 240, 240))

    def test_a_head_that_needs_more_than_a_place(self):
        model = create("test_resnet")
        model.forward_head = lambda x: model.fc(F.avg_pool2d(x, 2).flatten(1))
        with pytest.raises(UsageError, match=r"ResNet cannot classify a single place: .*too small; use a timm"):
            PlaceScores(model).find_grid((3, 64, 64), 5, CPU)

    def test_a_model_without_pooling(self):
        with pytest.raises(UsageError, match="gives no logits"):
            PlaceScores(create("test_vit", **TINY_VIT, global_pool="")).find_grid((3, 32, 32), 5, CPU)
        with pytest.raises(UsageError, match="cannot classify a single place: mat1 and mat2"):
            PlaceScores(create("test_resnet", global_pool="")).find_grid((3, 64, 64), 5, CPU)

    def test_a_model_without_classifier(self):
        model = timm.create_model("test_resnet", num_classes=0).eval()
        with pytest.raises(UsageError, match=r"it gives \d+ scores for 5 classes"):
            PlaceScores(model).find_grid((3, 64, 64), 5, CPU)


@pytest.mark.parametrize("count, size, grid", [
    (196, (224, 224), (14, 14)),
    (18, (100, 60), (6, 3)),
    (140, (160, 224), (10, 14)),
    (1, (32, 40), (1, 1)),
])  # fmt: skip
def test_the_grid_of_a_sequence(count, size, grid):
    assert token_grid(count, size) == grid


@pytest.mark.parametrize("count", [0, 2, 97, 50])
def test_a_sequence_that_is_no_grid(count):
    with pytest.raises(UsageError, match=f"{count} tokens, which do not form a grid of an image of 64x64"):
        token_grid(count, (64, 64))
