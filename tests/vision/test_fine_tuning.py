"""From a probe to fine-tuning: the probe's head is where the training starts, and the top blocks alone are trained."""

import json

import pytest
import timm
import torch

from sot_base.errors import UsageError
from sot_probe.layer_head import LayerHead
from tests.vision.conftest import make_split, weights
from vision import probe, train, validate
from vision.models.attach import attach_head
from vision.models.build import build_model
from vision.models.weights.load import load_checkpoint
from vision.models.weights.read import read_checkpoint
from vision.probing.image_encoder import ImageEncoder
from vision.training.head_task import HeadTask

VIT = ("--model", "test_vit", "--img-size", "32", "-j", "0", "--device", "cpu")
TINY = ("--mgcrp-heads", "2", "--mgcrp-q", "4", "--batch-size", "4", "--epochs", "2", "--seeds", "1", "--lr", "3e-2")


@pytest.fixture(scope="module")
def run_probe(images, tmp_path_factory):
    """Runs the probe; returns its folder."""
    torch.manual_seed(0)
    weights_file = tmp_path_factory.mktemp("weights") / "vit.pth"
    torch.save(timm.create_model("test_vit", img_size=32).state_dict(), weights_file)

    def run(*words):
        out = tmp_path_factory.mktemp("probe")
        arguments = [
            images,
            *VIT,
            "--checkpoint",
            weights_file,
            "--output-dir",
            out,
            "--cache-dir",
            out / "store",
            *TINY,
        ]
        assert probe.main([*map(str, arguments), "--cache-dtype", "float32", *words]) == 0
        return out

    return run


@pytest.fixture(scope="module")
def probed(run_probe):
    return run_probe("--heads", "mgcrp")


@pytest.fixture
def fine_tune(images, tmp_path, monkeypatch):
    """Trains for an epoch; returns the folder of the run."""
    monkeypatch.chdir(tmp_path)

    def run(*words, data=images):
        settings = ("--epochs", 1, "-b", 5, "--lr", 1e-2, "--warmup-epochs", 0, "--no-aug", "--output", "runs")
        train.main([str(word) for word in (data, *VIT, *settings, "--experiment", "run", *words)])
        return tmp_path / "runs" / "run"

    return run


def load_model(path):
    content = read_checkpoint(path)
    return load_checkpoint(build_model(content["recipe"]), content["state_dict"], strict=True).eval()


def changed(before, after):
    return {name for name, value in before.items() if not torch.equal(value, after[name])}


def test_a_training_starts_from_the_head_of_the_probe(probed, fine_tune, monkeypatch, caplog):
    path, first = probed / "model" / "model_best.pth.tar", []
    forward = HeadTask.forward

    def recording(self, input, target):
        if not first:
            with torch.no_grad():
                first.append((input, self.trainable_module.eval()(input)))
            self.trainable_module.train()
        return forward(self, input, target)

    monkeypatch.setattr(HeadTask, "forward", recording)
    caplog.set_level("INFO")
    after = weights(fine_tune("--initial-checkpoint", path, "--strict-head"))
    assert f"the training starts from the saved head (pooling mgcrp, fusion sum_fc): {path}" in caplog.text
    before = load_model(path)
    ((images, logits),) = first
    torch.testing.assert_close(before(images), logits, atol=1e-5, rtol=1e-5)
    names = changed(before.state_dict(), after)
    assert {"blocks.0.attn.qkv.weight", "head.word_fc.weight"} <= names


def test_a_head_that_does_not_fit_is_refused(probed, fine_tune, images, tmp_path):
    start = ("--initial-checkpoint", probed / "model" / "model_best.pth.tar", "--strict-head")
    others = tmp_path / "others"
    for split in ("train", "val"):
        make_split(others / split, ("ant", "bee", "owl"))
    with pytest.raises(UsageError, match="the checkpoint has the classes cat, dog, owl, the data ant, bee, owl: "):
        fine_tune(*start, data=others)
    with pytest.raises(UsageError, match="the checkpoint does not fit VisionTransformer: head"):
        fine_tune(*start, "--head-pooling", "attention")
    with pytest.raises(UsageError, match="no checkpoint with a head: --strict-head; give --initial-checkpoint"):
        fine_tune("--strict-head")


def test_the_top_blocks_alone_are_trained(probed, fine_tune):
    path = probed / "model" / "model_best.pth.tar"
    before = load_model(path).state_dict()
    last = len(timm.create_model("test_vit").blocks) - 1
    names = changed(
        before, weights(fine_tune("--initial-checkpoint", path, "--train-layers", 1, "--weight-decay", 0.1))
    )
    assert {f"blocks.{last}.attn.qkv.weight", "norm.weight", "head.word_fc.weight"} <= names
    assert all(name.startswith((f"blocks.{last}.", "norm.", "fc_norm.", "head.")) for name in names)
    for words, message in (
        (("--train-layers", last + 2), f"the model has {last + 1} blocks: --train-layers {last + 2}; give at most"),
        (("--train-layers", 1, "--freeze-backbone"), "--freeze-backbone is --train-layers 0: the command line"),
        (("--train-layers", 1, "--model", "resnet10t"), "ResNet is no vision transformer with blocks: --train-layers"),
    ):
        with pytest.raises(UsageError, match=message):
            fine_tune(*words)


@pytest.mark.parametrize("name", ["test_vit", "sot_micro"])
def test_frozen_blocks_have_neither_dropout_nor_gradients(name):
    model = timm.create_model(name, img_size=32, drop_path_rate=0.9, num_classes=3)
    model = attach_head(model, {"num_heads": 2, "q_dim": 4}) if name == "test_vit" else model
    task = HeadTask(model, torch.nn.CrossEntropyLoss(), torch.device("cpu"), train_layers=1).train()
    below = []
    model.blocks[-1].register_forward_pre_hook(lambda block, args: below.append(args[0]))
    images = torch.rand(2, 3, 32, 32)
    for _ in range(2):
        task(images, torch.tensor([0, 1]))["loss"].backward()
    assert torch.equal(*below)
    assert not below[0].requires_grad
    assert model.blocks[-1].training
    learning = {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert {"blocks", "head"} < learning
    assert learning <= {"blocks", "norm", "fc_norm", "head"}


@pytest.mark.parametrize("name, count", [("test_vit", 1), ("test_vit", 3), ("sot_micro", 2), ("test_vit2", 2)])
def test_top_blocks_run_on_stored_states(name, count, tmp_path):
    torch.manual_seed(0)
    torch.save(timm.create_model(name, img_size=32).state_dict(), tmp_path / "model.pth")
    encoder = ImageEncoder.open(name, checkpoint=tmp_path / "model.pth", img_size=32, train_layers=count)
    head = encoder.create_head({"num_heads": 2, "q_dim": 4}, 3, {})
    top = LayerHead(head, top_layers=encoder.create_top_layers(count)).eval()
    images = torch.rand(2, 3, 32, 32)
    logits = top(encoder.encode(images))
    encoder.save(top, ("a", "b", "c"), False, tmp_path)
    expected = load_model(tmp_path / "model_best.pth.tar")(images)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    logits.sum().backward()
    assert all(part.grad is not None for part in top.top_layers.model.blocks.parameters())


def test_a_probe_trains_blocks_and_saves_them(run_probe, probed, images, tmp_path, monkeypatch):
    out = run_probe("--heads", "mgcrp", "--train-layers", "2", "--encoder-lr-scale", "0.5")
    before, after = (load_model(at / "model" / "model_best.pth.tar").state_dict() for at in (probed, out))
    names = {name for name in changed(before, after) if not name.startswith("head.")}
    last = len(timm.create_model("test_vit").blocks) - 1
    assert {f"blocks.{last - 1}.attn.qkv.weight", f"blocks.{last}.attn.qkv.weight", "norm.weight"} <= names
    assert all(name.startswith((f"blocks.{last - 1}.", f"blocks.{last}.", "norm.", "fc_norm.")) for name in names)
    monkeypatch.chdir(tmp_path)
    checkpoint = str(out / "model" / "model_best.pth.tar")
    validate.main([str(images), "--checkpoint", checkpoint, "--results", "found.json", "-j", "0", "--device", "cpu"])
    entry = json.loads((out / "results.json").read_text())["heads"]["mgcrp"]["seeds"]["1"]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["top1"] == pytest.approx(entry["metrics"]["val"]["top1"], abs=1e-3)


@pytest.mark.parametrize(
    "name, count, message",
    [
        ("test_vit", 6, "test_vit has 6 blocks: --train-layers; give at most 5"),
        ("test_resnet", 1, "test_resnet is no vision transformer: --train-layers 1; leave it out"),
        ("eva02_tiny_patch14_224", 1, "the blocks of eva02_tiny_patch14_224 do not run by themselves: --train-layers"),
    ],
)
def test_models_whose_blocks_cannot_be_trained_on_states(name, count, message, images, tmp_path):
    size = 28 if name.startswith("eva") else 32
    kwargs = {} if name == "test_resnet" else {"img_size": size}
    torch.save(timm.create_model(name, **kwargs).state_dict(), tmp_path / "model.pth")
    words = [images, "--model", name, "--checkpoint", tmp_path / "model.pth", "--img-size", size, "-j", 0]
    words += ["--device", "cpu", "--output-dir", tmp_path / "out", "--train-layers", count]
    with pytest.raises(UsageError, match=message):
        probe.main([str(word) for word in words])
    assert not (tmp_path / "out").exists()
