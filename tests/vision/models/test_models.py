import copy
import pickle
from functools import cache

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.utils import ModelEmaV3
from torch import nn

import vision  # noqa: F401  (registers the models)
from sot_core import HeadConfig
from tests.sot_core.cases import POOLINGS_AND_FUSIONS
from tests.vision.golden import GOLDEN_FILES, golden_model
from vision.models.names import PUBLISHED_NAMES
from vision.models.sizes import PUBLISHED_SIZES
from vision.models.sot import sinusoid_table

SMALL = {
    "sot_tiny": {"embed_dim": 24, "depth": 2, "num_heads": 2, "token_embed": {"token_dim": 8, "dense_layers": 1}},
    "so_vit_7": {"embed_dim": 24, "depth": 2, "num_heads": 2, "token_embed": {"type": "ResNet", "token_dim": 4}},
    "deit_tiny_sot": {"embed_dim": 24, "depth": 2, "num_heads": 2, "token_embed": {"token_dim": 8, "dense_layers": 1}},
    "swin_tiny_sot": {
        "embed_dim": 8,
        "depths": (1, 1, 1, 1),
        "num_heads": (1, 1, 2, 2),
        "token_embed": {"token_dim": 8, "dense_layers": 1},
    },
    "hvt_small_2": {
        "patch_size": 8,
        "num_heads": 2,
        "head_dim": 12,
        "num_blocks": 3,
        "pool_block_width": 2,
        "head_pooling": "mgcrp",
    },
    "lvvit_s": {"embed_dim": 24, "depth": 2, "num_heads": 2, "stem_width": 8, "head_pooling": "mgcrp"},
    "sot_micro": {"embed_dim": 24, "depth": 2},
}
IMAGE = {name: 32 if name == "sot_micro" else 64 for name in SMALL}
NO_CLS = ("swin", "hvt")
GOLDEN_NAMES = {**{name.lower(): name for name in PUBLISHED_NAMES}, **GOLDEN_FILES}
HEAD = {"mgcrp_heads": 2, "mgcrp_q": 3, "mgcrp_k": 3}


def build(name, num_classes=5, **kwargs):
    """A model of the family, made small."""
    settings = {"img_size": IMAGE[name], **SMALL[name], **HEAD, **kwargs}
    return timm.create_model(name, num_classes=num_classes, **settings)


def image(name, batch=2, size=None):
    return torch.randn(batch, 3, *(size or (IMAGE[name], IMAGE[name])))


def without_gradient(model):
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


@cache
def full_size(name):
    with torch.device("meta"):
        return timm.create_model(name)


@pytest.mark.parametrize("name", [*PUBLISHED_SIZES, *PUBLISHED_NAMES])
def test_registered_with_timm(name):
    assert timm.is_model(name)
    assert timm.list_models(name) == [name]
    config = timm.get_pretrained_cfg(name)
    size = 32 if name == "sot_micro" else int(name[-3:]) if name[-3:].isdigit() else 224
    assert config.input_size == (3, size, size)
    assert config.fixed_input_size


@pytest.mark.parametrize("name", [name for name in PUBLISHED_SIZES if name in GOLDEN_NAMES])
def test_parameters_are_those_of_the_published_code(name):
    golden = golden_model(GOLDEN_NAMES[name])
    parameters = list(full_size(name).parameters())
    assert sum(p.numel() for p in parameters) == golden["params_total"]
    assert sum(p.numel() for p in parameters if p.requires_grad) == golden["params_trainable"]
    measured = PUBLISHED_SIZES[name].code_params
    assert measured == (round(golden["params_total"] / 1e6, 3), round(golden["params_trainable"] / 1e6, 3))


@pytest.mark.parametrize("name", [name for name in PUBLISHED_SIZES if name.startswith(("deit", "swin"))])
def test_parameters_are_near_the_published_ones(name):
    params = sum(p.numel() for p in full_size(name).parameters()) / 1e6
    assert params == pytest.approx(PUBLISHED_SIZES[name].params, rel=0.03)


def test_micro_is_small():
    assert 1e5 < sum(p.numel() for p in full_size("sot_micro").parameters()) < 5e5


@pytest.mark.parametrize("img_size, patch, grid", [
    (8, 2, (4, 4)), (16, 2, (8, 8)), (28, 4, (7, 7)), (32, 4, (8, 8)), (48, 8, (6, 6)), (64, 8, (8, 8)),
    (15, 1, (15, 15)), ((32, 64), 4, (8, 16)),
])  # fmt: skip
def test_micro_fits_small_images(img_size, patch, grid):
    model = timm.create_model("sot_micro", img_size=img_size, num_classes=3)
    assert model.patch_embed.patch_size == (patch, patch)
    assert model.patch_embed.grid_size == grid
    assert model(torch.randn(1, 3, *model.patch_embed.img_size)).shape == (1, 3)


@pytest.mark.parametrize("name", SMALL)
class TestEveryFamily:
    def test_logits_and_gradients(self, name):
        model = build(name).train()
        logits = model(image(name))
        assert logits.shape == (2, 5)
        logits.square().sum().backward()
        assert without_gradient(model) == []
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.requires_grad)

    def test_parts_of_the_forward_pass(self, name):
        model, x = build(name).eval(), image(name)
        features = model.forward_features(x)
        torch.testing.assert_close(model.forward_head(features), model(x))
        pooled = model.forward_head(features, pre_logits=True)
        assert pooled.shape == (2, model.head_hidden_size) == (2, 18)
        model.reset_classifier(0)
        torch.testing.assert_close(model(x), pooled)
        assert isinstance(model.get_classifier(), nn.Identity)

    def test_reset_classifier_renews_the_classifiers_alone(self, name):
        model, x = build(name).eval(), image(name)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        model.reset_classifier(7)
        assert model(x).shape == (2, 7)
        assert model.num_classes == model.head.config.num_classes == 7
        after = model.state_dict()
        assert after.keys() == before.keys()
        changed = {
            key for key in after if after[key].shape != before[key].shape or not torch.equal(after[key], before[key])
        }
        assert changed == {key for key in before if "_fc." in key}
        model.reset_classifier(0, "")
        torch.testing.assert_close(model(x), model.forward_features(x))
        model.reset_classifier(5)
        assert model(x).shape == (2, 5)

    def test_classifiers(self, name):
        model = build(name)
        classifiers = model.get_classifier()
        if name.startswith(NO_CLS):
            assert classifiers is model.head.word_fc
        else:
            dense = (model.head.dense_fc,) if name.startswith("lvvit") else ()
            assert classifiers == (model.head.cls_fc, model.head.word_fc, *dense)
        names = model.pretrained_cfg["classifier"]
        for prefix in names if isinstance(names, tuple) else (names,):
            assert isinstance(model.get_submodule(prefix), nn.Linear)

    def test_no_classes(self, name):
        model = build(name, num_classes=0)
        assert model(image(name)).shape == (2, model.head_hidden_size)
        assert not [key for key in model.state_dict() if "_fc." in key]

    def test_two_builds_share_nothing(self, name):
        first, second = build(name), build(name)
        assert first.head.config == second.head.config
        addresses = {t.data_ptr() for t in first.state_dict().values() if t.numel() > 1}
        assert addresses.isdisjoint(t.data_ptr() for t in second.state_dict().values() if t.numel() > 1)
        second.load_state_dict(first.state_dict())
        x = image(name)
        torch.testing.assert_close(first.eval()(x), second.eval()(x), rtol=0, atol=0)

    def test_rectangular_images(self, name):
        size = (IMAGE[name], 2 * IMAGE[name])
        assert build(name, img_size=size)(image(name, size=size)).shape == (2, 5)

    def test_input_size_can_change(self, name):
        model, size = build(name), (2 * IMAGE[name], IMAGE[name])
        model.set_input_size(size)
        assert model(image(name, size=size)).shape == (2, 5)
        assert {n for n, p in model.named_parameters() if not p.requires_grad} == (
            {"pos_embed"} if getattr(model, "fixed_pos_embed", False) else set()
        )

    def test_another_image_size_is_refused(self, name):
        with pytest.raises(AssertionError, match="doesn't match model"):
            build(name)(image(name, size=(IMAGE[name] * 2, IMAGE[name])))
        with pytest.raises(ValueError, match="must be a multiple of the patch size"):
            build(name, img_size=IMAGE[name] + 3, patch_size=4)

    def test_batch_does_not_matter(self, name):
        model, x = build(name).eval(), image(name, batch=3)
        torch.testing.assert_close(model(x)[1:2], model(x[1:2]), rtol=1e-4, atol=1e-5)

    def test_grad_checkpointing_changes_nothing(self, name):
        model, x = build(name, drop_path_rate=0.0).train(), image(name)
        model(x).square().sum().backward()
        grads = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        model.set_grad_checkpointing()
        model(x).square().sum().backward()
        for key, p in model.named_parameters():
            if p.grad is not None:
                torch.testing.assert_close(p.grad, grads[key], rtol=1e-4, atol=1e-5)

    def test_intermediates(self, name):
        model, x = build(name).eval(), image(name)
        final, intermediates = model.forward_intermediates(x, indices=2)
        torch.testing.assert_close(final, model.forward_features(x))
        assert len(intermediates) == 2
        assert intermediates[-1].dim() == 4

    def test_weight_decay_and_layer_decay_groups(self, name):
        model = build(name)
        no_decay = model.no_weight_decay()
        assert "head.pool.norm.start_vector" in no_decay
        assert name.startswith("swin") or {"pos_embed", "cls_token"} <= no_decay
        groups = param_groups_layer_decay(model, weight_decay=0.1, layer_decay=0.5, no_weight_decay_list=no_decay)
        scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
        trainable = [p for p in model.parameters() if p.requires_grad]
        assert sorted(scale) == sorted(map(id, trainable))
        assert scale[id(model.head.word_fc.weight)] == 1.0
        assert scale[id(next(model.patch_embed.parameters()))] < 1.0
        decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
        assert id(model.head.pool.norm.start_vector) not in decayed

    def test_copies(self, name):
        model, x = build(name).eval(), image(name)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), ModelEmaV3(model).module.eval()):
            torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)
            assert next(other.parameters()) is not next(model.parameters())

    def test_drop_rate_is_the_heads_dropout(self, name):
        assert build(name, drop_rate=0.3).head.config.drop_rate == 0.3
        assert build(name, drop_rate=0.3, head_dropout=0.2).head.config.drop_rate == 0.2
        assert build(name).head.config.drop_rate == 0.0

    def test_learns_eight_images(self, name):
        model, x, y = build(name, drop_path_rate=0.0), image(name, batch=8), torch.arange(8) % 5
        optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-2)
        losses = []
        while not losses or (losses[-1] > losses[0] / 2 and len(losses) < 50):
            losses.append(nn.functional.cross_entropy(model(x), y))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] <= losses[0] / 2


@pytest.mark.parametrize("pooling, fusion", POOLINGS_AND_FUSIONS)
def test_every_head_learns_with_all_its_parameters(pooling, fusion):
    model = build("sot_tiny", head_pooling=pooling, head_fusion=fusion, efficient_queries=4)
    logits = model(image("sot_tiny"))
    sum(part.sum() for part in logits).backward() if isinstance(logits, tuple) else logits.sum().backward()
    assert without_gradient(model) == []
    assert (model.head.config.pooling, model.head.config.fusion) == (pooling, fusion)


def test_a_model_without_class_token_reads_the_words():
    assert build("swin_tiny_sot").head.config.fusion == "words"
    baseline = build("swin_tiny_sot", head_fusion="cls").head.config
    assert (baseline.fusion, baseline.pooling) == ("words", "gap")
    model = build("sot_tiny", class_token=False, global_pool="avg")
    assert model.head.config.fusion == "words"
    assert model(image("sot_tiny")).shape == (2, 5)


def test_head_options_and_head_config():
    model = build("sot_tiny", mgcrp_center="none", svpn_values=0, svpn_iters=2, svpn_alpha=0.3)
    config = model.head.config
    assert (config.center, config.num_singular_values, config.num_iters, config.alpha) == (None, None, 2, 0.3)
    again = build("sot_tiny", head_config=config.to_dict(), mgcrp_heads=None, mgcrp_q=None, mgcrp_k=None)
    assert again.head.config == config
    assert build("sot_tiny", head_config=HeadConfig(24, 5, pooling="gap")).head.config.pooling == "gap"


@pytest.mark.parametrize("kwargs, error, message", [
    ({"head_pooling": "median"}, ValueError, "Unknown pooling 'median'"),
    ({"head_config": {"poolin": "gap"}}, ValueError, "did you mean 'pooling'"),
    ({"head_config": {"embed_dim": 7}}, ValueError, "embed_dim 7 does not fit: the backbone's tokens are 24 wide"),
    ({"token_embed": "VGG"}, ValueError, "Unknown token embedding type 'VGG'"),
    ({"head_poling": "gap"}, TypeError, "head_poling"),
])  # fmt: skip
def test_wrong_options_are_named(kwargs, error, message):
    with pytest.raises(error, match=message):
        build("sot_tiny", **kwargs)


def test_new_models_centre_each_channel():
    assert timm.create_model("sot_micro").head.config.center == "token"
    assert full_size("sot_tiny").head.config.center == "token"


def test_fixed_positions_are_the_sinusoid():
    model = build("sot_tiny")
    assert not model.pos_embed.requires_grad
    torch.testing.assert_close(model.pos_embed.detach(), sinusoid_table(17, 24), rtol=0, atol=0)
    assert build("deit_tiny_sot").pos_embed.requires_grad
    assert build("sot_tiny", fixed_pos_embed=False).pos_embed.requires_grad


@pytest.mark.parametrize("mode", ["", "jax", "jax_nlhb", "moco", "reset", "skip"])
def test_no_way_of_initialising_stops_the_head(mode):
    model = build("sot_tiny", weight_init=mode)
    if mode == "skip":
        model.init_weights()
    model(image("sot_tiny")).square().sum().backward()
    assert model.head.pool.proj.weight.grad.abs().max() > 0
    torch.testing.assert_close(model.pos_embed.detach(), sinusoid_table(17, 24), rtol=0, atol=0)


def test_dynamic_image_sizes():
    model = build("sot_tiny", dynamic_img_size=True).eval()
    assert model(torch.randn(1, 3, 96, 64)).shape == (1, 5)
    strict = build("sot_tiny").eval()
    strict.load_state_dict(model.state_dict())
    x = image("sot_tiny")
    torch.testing.assert_close(model(x), strict(x))


def test_features_only():
    for name, channels in (("sot_tiny", [24]), ("swin_tiny_sot", [8, 16, 32, 64])):
        indices = [1] if name == "sot_tiny" else [0, 1, 2, 3]
        model = build(name, features_only=True, out_indices=indices)
        assert model.feature_info.channels() == channels
        assert len(model(image(name))) == len(channels)


@pytest.mark.parametrize("name", ["sot_micro", "swin_tiny_sot", "hvt_small_2", "lvvit_s"])
def test_compiles_without_graph_breaks(name):
    model, x = build(name).eval(), image(name)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_published_names_build_the_same_model():
    from vision.models.sot import SoT

    model = timm.create_model("SoT_Tiny", **{**SMALL["sot_tiny"], **HEAD}, img_size=64, num_classes=5)
    assert isinstance(model, SoT)
    model.load_state_dict(build("sot_tiny").state_dict())
