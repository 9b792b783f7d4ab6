import copy
import io
import logging
import pickle

import pytest
import timm
import torch
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.utils import CheckpointSaver, ModelEmaV3
from torch import nn

import vision
from sot_core import ClassificationHead, HeadConfig
from tests.sot_core.cases import POOLINGS_AND_FUSIONS
from vision.models.meta_device import parameters_without_gradient

VIT = {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2}
SWIN = {"img_size": 56, "embed_dim": 8, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 2, 2), "drop_path_rate": 0.0}
# name -> what makes it small, the image's size, whether there is a class token, words
BACKBONES = {
    "vit_tiny_patch16_224": (VIT, 32, True, 4),
    "deit_tiny_distilled_patch16_224": (VIT, 32, True, 4),
    "vit_medium_patch16_reg4_gap_256": (VIT, 32, False, 4),
    "vit_small_patch16_dinov3": ({**VIT, "embed_dim": 32, "num_heads": 2}, 32, True, 4),
    "eva02_tiny_patch14_224": ({"img_size": 28, "embed_dim": 24, "depth": 1, "num_heads": 2}, 28, True, 4),
    "cait_xxs24_224": ({**VIT, "depth_token_only": 1}, 32, True, 4),
    "swin_tiny_patch4_window7_224": (SWIN, 56, False, 4),
    "resnet10t": ({"channels": (8, 8, 8, 8), "layers": (1, 1, 1, 1), "stem_width": 8}, 64, False, 4),
    "convnext_atto": ({"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 16)}, 64, False, 4),
    "poolformer_s12": ({}, 64, False, 4),
    "mobilenetv3_small_050": ({}, 64, False, 4),
}
HEAD = {"num_heads": 2, "q_dim": 3, "num_queries": 4}


def backbone(name, num_classes=5, **kwargs):
    return timm.create_model(name, num_classes=num_classes, **{**BACKBONES[name][0], **kwargs})


def image(name, batch=2):
    return torch.randn(batch, 3, BACKBONES[name][1], BACKBONES[name][1])


def without_gradient(model):
    return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize("name", BACKBONES)
class TestEveryKindOfBackbone:
    def test_logits_and_gradients(self, name):
        model = vision.attach_head(backbone(name), **HEAD).train()
        logits = model(image(name))
        assert logits.shape == (2, 5)
        logits.square().sum().backward()
        assert without_gradient(model) == []

    def test_reads_the_right_tokens(self, name):
        model, x = vision.attach_head(backbone(name), **HEAD).eval(), image(name)
        _, _, has_cls, words = BACKBONES[name]
        tokens = model.word_tokens(model.forward_features(x))
        assert tokens.shape == (2, words + has_cls, model.head.config.embed_dim)
        assert model.head.config.has_cls_token == has_cls
        assert model.head.config.fusion == ("sum_fc" if has_cls else "words")
        torch.testing.assert_close(model(x), model.head(tokens))

    def test_state_dict_is_the_backbones_and_the_head(self, name):
        model = backbone(name)
        before = model.state_dict()
        classifiers = model.pretrained_cfg["classifier"]
        classifiers = (classifiers,) if isinstance(classifiers, str) else classifiers
        old_head = {key for key in before if key.startswith(("head.", *(f"{c}." for c in classifiers), "head_dist."))}
        after = vision.attach_head(model, **HEAD).state_dict()
        assert {key for key in after if not key.startswith(("head.", "fc_norm."))} == {
            key for key in before.keys() - old_head if not key.startswith("fc_norm.")
        }
        own = ClassificationHead(model.head.config).state_dict()
        assert {key for key in after if key.startswith("head.")} == {f"head.{key}" for key in own}
        assert all(torch.equal(after[key], before[key]) for key in before.keys() - old_head)

    def test_timms_interface(self, name):
        model, x = vision.attach_head(backbone(name), **HEAD).eval(), image(name)
        features = model.forward_features(x)
        torch.testing.assert_close(model.forward_head(features), model(x))
        pooled = model.forward_head(features, pre_logits=True)
        assert pooled.shape == (2, model.head_hidden_size)
        model.reset_classifier(0)
        torch.testing.assert_close(model(x), pooled)
        model.reset_classifier(0, "")
        torch.testing.assert_close(model(x), features)
        model.reset_classifier(3)
        assert model(x).shape == (2, 3)
        classifier = model.get_classifier()
        layers = classifier if isinstance(classifier, tuple) else (classifier,)
        assert all(isinstance(layer, nn.Linear) and layer.out_features == 3 for layer in layers)
        names = model.pretrained_cfg["classifier"]
        assert [model.get_submodule(path) for path in names] == list(layers)

    def test_copies_and_pickles(self, name):
        model, x = vision.attach_head(backbone(name), **HEAD).eval(), image(name)
        file = io.BytesIO(pickle.dumps(model))
        for other in (copy.deepcopy(model), pickle.load(file), ModelEmaV3(model).module):
            torch.testing.assert_close(other.eval()(x), model(x), rtol=0, atol=0)
            assert type(other) is type(model)

    def test_layer_decay_reaches_every_parameter(self, name):
        model = vision.attach_head(backbone(name), **HEAD)
        no_decay = model.no_weight_decay()
        assert "head.pool.norm.start_vector" in no_decay
        groups = param_groups_layer_decay(model, weight_decay=0.1, layer_decay=0.5, no_weight_decay_list=no_decay)
        grouped = [id(p) for group in groups for p in group["params"]]
        assert sorted(grouped) == sorted(id(p) for p in model.parameters() if p.requires_grad)


@pytest.mark.slow
@pytest.mark.parametrize("name, kwargs", [
    ("resnet50", {}),
    ("swin_tiny_patch4_window7_224", {"img_size": 112}),
    ("convnext_tiny", {}),
    ("vit_tiny_patch16_224", {"img_size": 96}),
    ("deit_tiny_distilled_patch16_224", {"img_size": 96}),
])  # fmt: skip
def test_one_training_step_at_full_width(name, kwargs):
    model = vision.attach_head(timm.create_model(name, num_classes=4, **kwargs))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    x, y = torch.randn(2, 3, kwargs.get("img_size", 96), kwargs.get("img_size", 96)), torch.tensor([0, 3])
    before = model.head.word_fc.weight.clone()
    loss = nn.functional.cross_entropy(model.train()(x), y)
    loss.backward()
    assert without_gradient(model) == []
    optimizer.step()
    assert torch.isfinite(loss)
    assert not torch.equal(model.head.word_fc.weight, before)


@pytest.mark.parametrize("pooling, fusion", POOLINGS_AND_FUSIONS)
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "cait_xxs24_224", "swin_tiny_patch4_window7_224"])
def test_every_head_on_a_backbone(name, pooling, fusion):
    model = vision.attach_head(backbone(name), pooling=pooling, fusion=fusion, **HEAD)
    logits = model(image(name))
    sum(part.sum() for part in logits).backward() if isinstance(logits, tuple) else logits.sum().backward()
    assert without_gradient(model) == []


def test_eight_images_are_learnt():
    for name in ("vit_tiny_patch16_224", "resnet10t", "swin_tiny_patch4_window7_224"):
        model, x, y = vision.attach_head(backbone(name), **HEAD), image(name, batch=8), torch.arange(8) % 5
        optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-2)
        losses = []
        while not losses or (losses[-1] > losses[0] / 2 and len(losses) < 50):
            losses.append(nn.functional.cross_entropy(model(x), y))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] <= losses[0] / 2


def test_unused_parts_of_the_old_head_are_frozen(caplog):
    with caplog.at_level(logging.INFO):
        model = vision.attach_head(backbone("mobilenetv3_small_050"), **HEAD)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"conv_head.weight", "conv_head.bias"}
    assert "frozen, for the new head does not use them: conv_head.weight, conv_head.bias" in caplog.text


def test_the_norm_after_the_old_pooling_stays():
    model = backbone("convnext_atto")
    norm = model.head.norm
    nn.init.normal_(norm.weight)
    attached = vision.attach_head(model, **HEAD).eval()
    assert attached.fc_norm.weight is norm.weight
    features = attached.forward_features(image("convnext_atto"))
    wanted = norm(features).flatten(2).transpose(1, 2)  # LayerNorm2d at each position
    torch.testing.assert_close(attached.word_tokens(features), wanted)
    vit = vision.attach_head(backbone("vit_medium_patch16_reg4_gap_256"), **HEAD)
    assert isinstance(vit.fc_norm, nn.LayerNorm)


def test_weights_and_modes_of_the_backbone_stay():
    model = backbone("resnet10t").train()
    model.layer1.eval()
    mean = model.bn1.running_mean.clone()
    vision.attach_head(model, **HEAD)
    assert model.training
    assert model.layer2.training
    assert not model.layer1.training
    assert torch.equal(model.bn1.running_mean, mean)
    assert isinstance(model, timm.models.ResNet)


def test_the_heads_dtype_is_the_models():
    model = vision.attach_head(backbone("vit_tiny_patch16_224").to(torch.bfloat16), **HEAD)
    assert model.head.word_fc.weight.dtype == torch.bfloat16
    assert model(image("vit_tiny_patch16_224").bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("config", [
    HeadConfig(16, 5, num_heads=2, q_dim=3),
    {"num_heads": 2, "q_dim": 3},
    {"type": "MGCrP", "fusion_type": "sum_fc", "args": {
        "dim": 16, "num_heads": 2, "wr_dim": 3,
        "normalization": {"type": "svPN", "alpha": 0.5, "iterNum": 1, "svNum": 1, "regular": None, "input_dim": 3}}},
])  # fmt: skip
def test_every_form_of_configuration(config):
    before = copy.deepcopy(config)
    model = vision.attach_head(backbone("vit_tiny_patch16_224"), config)
    assert config == before
    assert model.head.config.replace(k_dim=None) == HeadConfig(16, 5, num_heads=2, q_dim=3)
    assert vision.attach_head(backbone("vit_tiny_patch16_224"), config, pooling="gap").head.config.pooling == "gap"


def test_a_head_can_be_attached_again():
    model = vision.attach_head(backbone("swin_tiny_patch4_window7_224"), **HEAD)
    kind = type(model)
    vision.attach_head(model, pooling="gap")
    assert type(model) is kind
    assert model.head.config.pooling == "gap"
    own = timm.create_model("sot_micro")
    vision.attach_head(own, fusion="words", num_classes=3)
    assert own(torch.randn(1, 3, 32, 32)).shape == (1, 3)
    vision.attach_head(backbone("resnet10t"), has_cls_token=False)


def test_the_baseline_without_a_class_token_is_the_average():
    model = vision.attach_head(backbone("resnet10t"), HeadConfig(8, 5, fusion="cls")).eval()
    assert (model.head.config.fusion, model.head.config.pooling) == ("words", "gap")
    x = image("resnet10t")
    torch.testing.assert_close(model(x), model.head.word_fc(model.forward_features(x).mean((2, 3))))


def test_models_that_do_not_fit_are_refused_untouched():
    with pytest.raises(TypeError, match="Linear is not a timm classifier"):
        vision.attach_head(nn.Linear(2, 2))
    vit = backbone("vit_tiny_patch16_224")
    keys = list(vit.state_dict())
    with pytest.raises(ValueError, match="embed_dim 8 does not fit: the backbone's tokens are 16 wide"):
        vision.attach_head(vit, HeadConfig(8, 5))
    with pytest.raises(ValueError, match=r"Unknown key 'num_head'.*did you mean 'num_heads'"):
        vision.attach_head(vit, num_head=3)
    assert list(vit.state_dict()) == keys
    assert type(vit) is timm.models.VisionTransformer
    pit = timm.create_model("pit_ti_224", num_classes=3)
    with pytest.raises(ValueError, match="gives its class token alone: there are no word tokens to pool"):
        vision.attach_head(pit)
    with pytest.raises(ValueError, match="CoaT gives several feature maps"):
        vision.attach_head(timm.create_model("coat_tiny", num_classes=3))


def test_saver_and_loader_of_timm(tmp_path):
    name = "vit_tiny_patch16_224"
    model = vision.attach_head(backbone(name), **HEAD)
    saver = CheckpointSaver(model, create_optimizer_v2(model), checkpoint_dir=str(tmp_path))
    saver.save_checkpoint(0, metric=1.0)
    other = vision.attach_head(backbone(name), **HEAD)
    timm.models.load_checkpoint(other, str(tmp_path / "last.pth.tar"))
    x = image(name)
    torch.testing.assert_close(other.eval()(x), model.eval()(x), rtol=0, atol=0)
    larger = vision.load_checkpoint(
        vision.attach_head(backbone(name, 3, img_size=64), **HEAD), tmp_path / "last.pth.tar"
    )
    assert larger(torch.randn(1, 3, 64, 64)).shape == (1, 3)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet10t"])
def test_compiles_without_graph_breaks(name):
    model, x = vision.attach_head(backbone(name), **HEAD).eval(), image(name)
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


def test_the_probe_leaves_no_trace():
    model = timm.create_model("levit_128s").eval()  # caches attention biases in evaluation mode
    assert set(parameters_without_gradient(model)) == set()
    copy.deepcopy(model)
    with torch.no_grad():
        assert torch.isfinite(model(torch.randn(1, 3, 224, 224))).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_attaching_needs_no_gradients(mode):
    with mode():
        model = vision.attach_head(backbone("resnet10t"), **HEAD).eval()
        assert model(image("resnet10t")).isfinite().all()


def test_models_share_no_state():
    first, second = (vision.attach_head(backbone("resnet10t"), **HEAD) for _ in range(2))
    assert type(first) is type(second)
    assert type(backbone("resnet10t")) is timm.models.ResNet
    addresses = {t.data_ptr() for t in first.state_dict().values() if t.numel() > 1}
    assert addresses.isdisjoint(t.data_ptr() for t in second.state_dict().values() if t.numel() > 1)
    assert timm.get_pretrained_cfg("resnet10t").classifier == "fc"
