"""The methods that a model with the second-order head has, whatever its backbone is."""

import pytest
import timm
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from sot_core import ClassificationHead, HeadConfig
from vision.models.head_mixin import (
    HeadMixin,
    count_prefix_tokens,
    has_cls_token,
    resolve_head_config,
    split_head_options,
)

HEAD = {"num_heads": 2, "q_dim": 3}


class Transformer(HeadMixin, VisionTransformer):
    """A vision transformer with the head."""

    def __init__(self, head=HEAD, weight_init="", **kwargs):
        sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 2, "num_classes": 5}
        super().__init__(**{**sizes, **kwargs}, weight_init="skip")
        config = resolve_head_config(head, self.embed_dim, self.num_classes, self.has_class_token)
        self.finish_init(ClassificationHead(config), weight_init)


class Windows(HeadMixin, SwinTransformer):
    """A window transformer with the head."""

    token_layout = "NHWC"

    def __init__(self):
        super().__init__(img_size=32, patch_size=4, window_size=4, embed_dim=12, depths=(1, 1), num_heads=(2, 2))
        self.set_head(ClassificationHead(resolve_head_config(HEAD, self.num_features, 5, with_cls=False)))


def images(size=16):
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


class TestTokens:
    def test_the_class_token_alone_of_the_prefix(self):
        model = Transformer(reg_tokens=3).eval()
        features = model.forward_features(images())
        tokens = model.word_tokens(features)
        assert (features.shape[1], tokens.shape[1]) == (1 + 3 + 4, 1 + 4)
        assert torch.equal(tokens, torch.cat([features[:, :1], features[:, 4:]], dim=1))
        torch.testing.assert_close(model(images()), model.head(tokens))

    def test_no_class_token(self):
        model = Transformer(class_token=False, reg_tokens=2, global_pool="avg").eval()
        features = model.forward_features(images())
        normed = model.fc_norm(features[:, 2:])
        assert torch.equal(model.word_tokens(features), normed)
        assert (model.head.config.fusion, model.head.config.has_cls_token) == ("words", False)
        torch.testing.assert_close(model(images()), model.head(normed))

    def test_maps_are_sequences_of_their_positions(self):
        model = Windows().eval()
        features = model.forward_features(images(32))
        assert features.shape == (2, 4, 4, 24)
        assert torch.equal(model.word_tokens(features), features.flatten(1, 2))
        model.token_layout = "NCHW"
        assert torch.equal(model.word_tokens(features.permute(0, 3, 1, 2)), features.flatten(1, 2))

    def test_counting_prefix_tokens(self):
        assert count_prefix_tokens(Transformer(reg_tokens=3)) == 4
        assert count_prefix_tokens(Windows()) == 0
        assert (has_cls_token(Transformer()), has_cls_token(Windows())) == (True, False)


class TestTimmsInterface:
    @pytest.mark.parametrize("fusion, width", [("sum_fc", 2 * 9), ("concat", 12 + 2 * 9), ("cls", 12)])
    def test_features_before_the_classifiers(self, fusion, width):
        model = Transformer({**HEAD, "fusion": fusion}).eval()
        features = model.forward_head(model.forward_features(images()), pre_logits=True)
        model.reset_classifier(0)
        assert torch.equal(model(images()), features)
        assert features.shape == (2, model.num_features if fusion == "cls" else width) == (2, model.head_hidden_size)

    def test_a_new_classifier_keeps_the_pooling(self):
        model = Transformer()
        pool, classifiers = model.head.pool, model.get_classifier()
        model.reset_classifier(7)
        assert model.head.pool is pool
        assert model.num_classes == 7
        assert [layer.out_features for layer in model.get_classifier()] == [7, 7]
        assert set(model.get_classifier()).isdisjoint(classifiers)
        model.reset_classifier(0, "")
        assert torch.equal(model.eval()(images()), model.forward_features(images()))
        model.reset_classifier(3)
        assert model(images()).shape == (2, 3)

    def test_one_classifier_two_or_none(self):
        assert isinstance(Transformer({"fusion": "cls"}).get_classifier(), nn.Linear)
        assert len(Transformer().get_classifier()) == 2
        assert isinstance(Transformer(num_classes=0).get_classifier(), nn.Identity)

    def test_no_weight_decay_of_the_start_vector(self):
        names = Transformer().no_weight_decay()
        assert {"pos_embed", "cls_token", "head.pool.norm.start_vector"} <= names

    def test_the_head_keeps_device_dtype_and_mode(self):
        model = Transformer().double().eval()
        model.set_head(ClassificationHead(HeadConfig(12, 4, **HEAD)))
        assert {parameter.dtype for parameter in model.head.parameters()} == {torch.float64}
        assert not model.head.training
        assert model.num_classes == 4


class TestInitialisation:
    @pytest.mark.parametrize("mode", ["", "jax", "jax_nlhb"])
    def test_every_mode_draws_the_classifiers(self, mode):
        torch.manual_seed(0)
        model = Transformer(weight_init=mode, embed_dim=48)
        for layer in (model.head.cls_fc, model.head.word_fc, model.head.pool.proj):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.25)
            assert layer.bias is None or not layer.bias.any()

    def test_skipping_it(self):
        torch.manual_seed(0)
        skipped = Transformer(weight_init="skip")
        assert skipped.head.cls_fc.weight.std().item() > 0.1  # torch's own
        skipped.init_weights()
        assert skipped.head.cls_fc.weight.std().item() < 0.03


def test_a_label_for_every_patch_is_refused():
    with pytest.raises(ValueError, match="Windows has no token for every patch to the end: return_dense"):
        type("Windows", (HeadMixin, SwinTransformer), {})(return_dense=True)


class TestConfiguration:
    def test_without_a_class_token_the_words_are_classified(self):
        config = resolve_head_config({"fusion": "concat"}, 12, 5, with_cls=False)
        assert (config.fusion, config.pooling, config.has_cls_token) == ("words", "mgcrp", False)
        config = resolve_head_config({"fusion": "cls"}, 12, 5, with_cls=False)
        assert (config.fusion, config.pooling) == ("words", "gap")

    def test_settings_override_values(self):
        config = resolve_head_config(HEAD, 12, 5, with_cls=True, settings={"q_dim": 4, "fusion": "concat"})
        assert (config.num_heads, config.q_dim, config.fusion, config.num_classes) == (2, 4, "concat", 5)
        with pytest.raises(ValueError, match="embed_dim 16 does not fit: the backbone's tokens are 12 wide"):
            resolve_head_config({"embed_dim": 16}, 12, 5, with_cls=True)

    def test_options_are_taken_out_of_the_arguments(self):
        kwargs = {"head_pooling": "gap", "mgcrp_heads": 4, "drop_rate": 0.5, "depth": 3, "mgcrp_q": None}
        fields, rest = split_head_options(kwargs, num_heads=6, q_dim=24)
        assert fields == {"num_heads": 4, "q_dim": 24, "drop_rate": 0.5, "pooling": "gap"}
        assert rest == {"depth": 3}
        fields, _ = split_head_options({"head_config": HeadConfig(12, 5, q_dim=7), "mgcrp_q": 9}, q_dim=24)
        assert fields["q_dim"] == 9
        assert kwargs["mgcrp_heads"] == 4  # the caller's dictionary is not changed


def test_timm_builds_it():
    model = timm.create_model("sot_micro", img_size=16, mgcrp_heads=2, mgcrp_q=3, num_classes=4)
    assert isinstance(model, HeadMixin)
    assert (model.head.config.num_heads, model.head.config.q_dim, model.num_classes) == (2, 3, 4)
