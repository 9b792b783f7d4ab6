"""Token labeling from the command line: options, what the loss learns, restarts, starting points and mistakes."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from timm.layers import resample_abs_pos_embed

from sot_base.errors import run_main
from tests.vision.conftest import CLASSES, assert_same_state, load, rows, weights
from tests.vision.models.test_lvvit import published_names
from tests.vision.test_distributed import torchrun
from vision import train as train_module
from vision import validate
from vision.cli.config_file import parse_args
from vision.cli.train_options import train_parser
from vision.data.augment import AnyBatchMixup
from vision.data.sources import open_source
from vision.token_label.mixup import TokenLabelMixup
from vision.token_label.read_maps import LabelMap
from vision.token_label.write_maps import write_label_maps
from vision.training.build_trainer import build_trainer
from vision.training.head_task import HeadTask

SIZES = ("depth=2", "embed_dim=32", "num_heads=2", "stem_width=8", "patch_size=8")
TINY = ("--model", "lvvit_t", "--recipe", "none", "--img-size", "32", "--model-kwargs", *SIZES)
TINY += ("--device", "cpu", "-j", "0")


def write_maps(folder, data, names=CLASSES, order=None):
    """Maps of 4x4 places that mostly say the image's class; ``order`` gives each image the map of another one."""
    source = open_source(str(data), "train")
    files = [source.key(index) for index in range(len(source.targets))]
    with write_label_maps(folder, names, files, (4, 4), 2) as writer:
        for index, label in enumerate(source.targets[order] if order is not None else source.targets):
            classes = torch.tensor([label, (label + 1) % len(names)]).view(2, 1, 1).expand(2, 4, 4)
            writer.put(index, LabelMap(torch.tensor([9.0, 3.0]).view(2, 1, 1).expand(2, 4, 4), classes))
    return folder


def write_torch_files(folder, data, last_class=0):
    """The published kind: one file an image, whose last one has a class of one's own."""
    source = open_source(str(data), "train")
    for index in range(len(source.targets)):
        classes = torch.full((2, 4, 4), source.targets[index])
        if index + 1 == len(source.targets):
            classes[0] = last_class
        path = (folder / source.key(index)).with_suffix(".pt")
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.stack([torch.ones(2, 4, 4), classes]).half(), path)
    return folder


@pytest.fixture(scope="session")
def maps(images, tmp_path_factory):
    return write_maps(tmp_path_factory.mktemp("maps") / "labels", images)


@pytest.fixture
def run(images, tmp_path, monkeypatch):
    """Run train.py on the tiny LV-ViT in an empty working directory; gives the run's folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words, name="run", data=images):
        train_module.main([str(data), *TINY, "--output", "runs", "--experiment", name, *map(str, words)])
        return tmp_path / "runs" / name

    return run


@pytest.fixture
def labelled(run, maps):
    """The same with token labeling."""
    return lambda *words, **kwargs: run("--token-label", "--token-label-data", maps, *words, **kwargs)


@pytest.fixture
def before_training(images):
    """Session and trainer of a command, as they are before its first step."""

    def start(*words):
        session = train_module.open_session(parse_args(train_parser(), [str(images), *TINY, *map(str, words)]))
        return session, build_trainer(session)[0]

    return start


def first_batch(trainer):
    images, batch = next(iter(trainer.loader))
    return images, trainer.task.make_targets(batch)


def test_a_run_logs_both_losses_and_its_checkpoint_evaluates(images, labelled, capsys):
    folder = labelled("--epochs", 2, "-b", 4, "--model-ema", "--model-ema-decay", 0.5, "--dense-weight", 0.25)
    for row in rows(folder):
        total = float(row["train_class_loss"]) + 0.25 * float(row["train_dense_loss"])
        assert float(row["train_loss"]) == pytest.approx(total, rel=1e-6)
        assert {"eval_top1", "eval_ema_top1"} < row.keys()
    checkpoint = load(folder)
    assert checkpoint["recipe"]["kwargs"]["return_dense"] is checkpoint["recipe"]["kwargs"]["mix_token"] is True
    capsys.readouterr()
    words = [str(images), "--checkpoint", str(folder / "last.pth.tar"), "--device", "cpu", "-j", "0"]
    validate.main([*words, "--weights", "raw"])
    assert f"top-1 {float(rows(folder)[-1]['eval_top1']):.2f} %" in capsys.readouterr().out
    again = parse_args(train_parser(), ["--config", str(folder / "options.yaml")])
    assert (again.token_label, again.dense_weight, again.cls_weight, again.mix_token) == (True, 0.25, 1.0, True)


def test_defaults(before_training, maps):
    session, trainer = before_training("--token-label", "--token-label-data", maps, "--token-label-size", 4, "-b", 5)
    criterion = trainer.task.criterion
    assert (criterion.dense_weight, criterion.cls_weight, criterion.ground_truth) == (0.5, 1.0, False)
    assert (trainer.model.return_dense, trainer.model.mix_token, trainer.task.mixup) == (True, True, None)
    _, target = first_batch(trainer)
    assert target.tokens.shape == (5, 16, 3)
    assert target.truth.amin().item() == pytest.approx(0.1 / 3)  # smoothing is in the targets
    assert session.grid == (4, 4)


def test_each_option_reaches_its_place(before_training, maps):
    words = ["--token-label", "--token-label-data", maps, "--cls-weight", 0.5, "--dense-weight", 2, "--ground-truth"]
    _, trainer = before_training(*words, "--no-mix-token", "--smoothing", 0, "--cutmix", 1)
    criterion = trainer.task.criterion
    assert (criterion.dense_weight, criterion.cls_weight, criterion.ground_truth) == (2, 0.5, True)
    assert not trainer.model.mix_token
    assert isinstance(trainer.task.mixup, TokenLabelMixup)
    images, target = first_batch(trainer)
    assert target.truth.amin().item() == 0
    mixed, soft = trainer.task.mixup(images, target)
    assert not torch.equal(mixed, images)
    torch.testing.assert_close(soft.tokens.sum(-1), torch.ones(len(images), 16))


@pytest.mark.parametrize("mixing", [[], ["--mixup", 0.8]])
def test_without_maps_the_datas_classes_are_learned(before_training, mixing):
    """The published fine-tuning on other data: no maps, the patches' loss has weight 0."""
    _, trainer = before_training("--token-label", "--token-label-size", 4, "--dense-weight", "0.0", "-b", 4, *mixing)
    images, targets = next(iter(trainer.loader))
    if mixing:
        assert type(trainer.task.mixup) is AnyBatchMixup
        assert trainer.task.make_targets(targets) is targets
        _, soft = trainer.task.mixup(images, targets)
    else:
        soft = trainer.task.make_targets(targets)
    assert soft.amin().item() == pytest.approx(0.1 / 3, rel=1e-3)
    outputs = trainer.task.train()(images, soft)
    assert outputs["parts"].keys() == {"class"}
    outputs["loss"].backward()
    assert trainer.model.head.cls_fc.weight.grad is not None
    assert all(p.grad is not None for p in trainer.model.parameters() if p.requires_grad)  # as several processes need


def test_the_patches_classifier_is_silent_where_nothing_trains_it(run):
    folder = run("--token-label", "--dense-weight", 0, "--epochs", 1, "-b", 8, "--weight-decay", 0.5)
    assert not weights(folder)["head.dense_fc.weight"].any()
    assert weights(folder)["head.cls_fc.weight"].any()


def test_without_the_images_loss_the_patches_alone_learn(before_training, maps):
    _, trainer = before_training("--token-label", "--token-label-data", maps, "--cls-weight", 0)
    outputs = trainer.task.train()(*first_batch(trainer))
    outputs["loss"].backward()
    assert outputs["parts"].keys() == {"dense"}
    assert all(p.grad is not None for p in trainer.model.parameters() if p.requires_grad)


def test_patches_without_labels_are_no_plain_classification(before_training, maps):
    _, trainer = before_training("--token-label", "--token-label-data", maps)
    task = HeadTask(trainer.model, torch.nn.CrossEntropyLoss(), torch.device("cpu")).train()
    with pytest.raises(TypeError, match="train with TokenLabelTask"):
        task(torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.long))


def test_freezing_lets_both_classifiers_learn(labelled):
    before = weights(labelled("--epochs", 1, "--lr", 0, "--freeze-backbone", name="before"))
    after = labelled("--epochs", 1, "--freeze-backbone", name="after")
    changed = {name for name, value in weights(after).items() if not torch.equal(before[name], value)}
    assert changed == {f"head.{layer}.{kind}" for layer in ("cls_fc", "dense_fc") for kind in ("weight", "bias")}
    assert float(rows(after)[0]["train_dense_loss"]) > 0


def test_accumulated_batches_equal_one_batch(labelled):
    """With a frozen backbone, whose batch statistics stay, and without boxes of other images."""
    common = ["--epochs", 1, "--opt", "momentum", "--momentum", 0, "--lr", 0.1, "--warmup-epochs", 0]
    common += ["--freeze-backbone", "--no-mix-token"]
    whole = weights(labelled(*common, "-b", 6, name="whole"))
    parts = labelled(*common, "-b", 2, "--grad-accum-steps", 3, name="parts")
    for name, value in weights(parts).items():
        torch.testing.assert_close(value, whole[name], rtol=1e-5, atol=1e-6, msg=name)


def test_resume_within_an_epoch_is_bitwise(labelled):
    common = ["--epochs", 2, "-b", 4, "--mixup", 0.8, "--cutmix", 1, "--reprob", 0.5, "--aa", "rand-m9-mstd0.5-inc1"]
    common += ["--drop-path", 0.2, "--model-ema", "--model-ema-decay", 0.8]
    whole = labelled(*common, name="whole")
    part = labelled(*common, "--max-steps", 6, name="part")
    assert load(part)["progress"]["step"] == 2
    resumed = labelled(*common, "--resume", "-j", 2, name="part")
    first, second = load(whole), load(resumed)
    for key in ("state_dict", "state_dict_ema", "optimizer", "progress", "metric"):
        assert_same_state(first[key], second[key])
    assert rows(whole) == rows(resumed)


def test_mixed_precision_and_images_that_cannot_be_read(images, maps, run, tmp_path):
    """Batches of one: that of the bad image is empty."""
    data = shutil.copytree(images, tmp_path / "data")
    (data / "train" / "dog" / "1.png").write_bytes(b"text")
    words = ["--token-label", "--token-label-data", maps, "--epochs", 1, "-b", 1, "--bad-images", "skip", "--amp"]
    (row,) = rows(run(*words, data=data))
    assert row["train_bad_images"] == "1"
    assert np.isfinite(float(row["train_dense_loss"]))


def test_published_label_maps(images, run, tmp_path):
    (row,) = rows(run("--token-label", "--token-label-data", write_torch_files(tmp_path / "pt", images), "--epochs", 1))
    assert float(row["train_dense_loss"]) > 0


def test_more_outputs_than_classes(labelled):
    assert float(rows(labelled("--num-classes", 5, "--epochs", 1))[0]["train_dense_loss"]) > 0


def test_dry_run(labelled, maps, capsys, tmp_path):
    labelled("--dry-run")
    out = capsys.readouterr().out
    assert f"token_labeling:\n  grid:\n  - 4\n  - 4\n  label_maps: {maps}\n" in out.replace("\n    ", " ")
    assert "\nmix_token: true\n" in out
    assert not (tmp_path / "runs").exists()


def test_an_image_that_is_not_square(labelled):
    folder = labelled("--img-size", 32, "--input-size", 3, 32, 48, "--epochs", 1)
    assert tuple(load(folder)["data_config"]["input_size"]) == (3, 32, 48)
    assert float(rows(folder)[0]["train_dense_loss"]) > 0


OTHERS = [
    ["--model", "sot_micro", "--model-kwargs", "depth=1", "embed_dim=16", "num_heads=2"],
    ["--model", "deit_tiny_sot", "--model-kwargs", "depth=1", "embed_dim=16", "num_heads=2"],
    ["--model", "vit_tiny_patch16_224", "--model-kwargs", "depth=1", "embed_dim=16", "num_heads=2", "patch_size=8"],
]


@pytest.mark.parametrize("words", OTHERS, ids=lambda words: words[1])
def test_other_transformers(images, labelled, words, capsys):
    """SoT, DeiT with its embedding and head, and timm's own."""
    folder = labelled(*words, "--epochs", 1, "-b", 5)
    (row,) = rows(folder)
    assert float(row["train_dense_loss"]) > 0
    validate.main([str(images), "--checkpoint", str(folder / "last.pth.tar"), "--device", "cpu", "-j", "0"])
    assert f"top-1 {float(row['eval_top1']):.2f} %" in capsys.readouterr().out
    assert len(rows(labelled(*words, "--epochs", 2, "-b", 5, "--resume"))) == 2


GIVE_MAPS = ["--token-label", "--token-label-data"]


@pytest.mark.parametrize(
    "words, message",
    [
        ([*GIVE_MAPS, "good", "--token-label-size", 7], "lvvit_t has 4x4 patches at 32x32 pixels; give 4"),
        (
            [*GIVE_MAPS, "good", "--input-size", 3, 32, 48, "--token-label-size", 4],
            "4x6 patches at 32x48 pixels; leave it out",
        ),
        ([*GIVE_MAPS, "nowhere"], "nowhere"),
        ([*GIVE_MAPS, "few"], "1 of 15 images have no label map"),
        ([*GIVE_MAPS, "others"], "label maps of 4 classes for 3"),
        ([*GIVE_MAPS, "renamed"], "cow"),
        ([*GIVE_MAPS, "large", "--epochs", 1], "a label map with class index 7 of 3 classes: "),
        ([*GIVE_MAPS, "large", "--epochs", 1, "-j", 1], "a label map with class index 7 of 3 classes: "),
        ([*GIVE_MAPS, "good", "--aa", "augmix-m3-w3"], "cannot follow AugMixAugment"),
        (["--token-label"], "give them as --token-label-data LABELS, or --dense-weight 0"),
        (["--token-label", "--dense-weight", 0, "--ground-truth"], "give --token-label-data LABELS"),
        (["--token-label", "--dense-weight", 0, "--cls-weight", 0], "leave nothing to learn"),
        (["--token-label-data", "good"], "--token-label-data is for token labeling: add --token-label"),
        (["--token-label-size", 4], "--token-label-size is for token labeling"),
        (["--dense-weight", 0], "--dense-weight is for token labeling"),
        (["--cls-weight", 1], "--cls-weight is for token labeling"),
        (["--ground-truth"], "--ground-truth is for token labeling"),
        (["--mix-token"], "--mix-token is for token labeling"),
        (["--no-mix-token"], "--no-mix-token is for token labeling"),
        (["--dense-weight", -1], "must be a number of at least 0"),
        (["--model-kwargs", "return_dense=True"], "give --token-label"),
        ([*GIVE_MAPS, "good", "--model-kwargs", "mix_token=True"], "--no-mix-token, instead"),
        (
            [*GIVE_MAPS, "good", "--model", "resnet18", "--model-kwargs"],
            "--token-label: cannot build the model resnet18: ResNet has no token for every patch to the end",
        ),
        ([*GIVE_MAPS, "good", "--model-kwargs", *SIZES, "depht=3"], "unexpected keyword argument 'depht'"),
        ([*GIVE_MAPS, "good", "--model-kwargs", "patch_drop_rate=0.5"], "patch_drop_rate must be 0"),
    ],
)
def test_mistakes_are_one_line_and_status_2(run, images, tmp_path, capsys, words, message):
    source = open_source(str(images), "train")
    wanted = set(map(str, words)) & {"good", "few", "others", "renamed", "large"}
    for name in wanted:
        if name == "large":
            write_torch_files(tmp_path / name, images, last_class=7)
        elif name == "few":
            write_torch_files(tmp_path / name, images)
            (tmp_path / name / source.key(8)).with_suffix(".pt").unlink()
        else:
            names = {"others": [*CLASSES, "cow"], "renamed": ["cat", "cow", "dog"]}.get(name, CLASSES)
            write_maps(tmp_path / name, images, names)
    with pytest.raises(SystemExit) as exit_:
        run_main(partial(run, *words))
    assert exit_.value.code == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in errors[0]


class TestFineTuning:
    """--finetune, which is --initial-checkpoint."""

    @pytest.fixture
    def start(self, labelled):
        return labelled("--epochs", 1, "-b", 8, name="start") / "last.pth.tar"

    def tune(self, labelled, path, *words):
        return weights(labelled("--finetune", path, "--lr", 0, "--epochs", 1, "--freeze-backbone", *words, name="tune"))

    @pytest.fixture(params=["ours", "published"])
    def checkpoint(self, start, tmp_path, request):
        """The same weights under our names and in a file as they are released."""
        if request.param == "ours":
            return start
        path = tmp_path / "lvvit.pth.tar"
        torch.save({"arch": "lvvit_t", "state_dict": published_names(weights(start.parent))}, path)
        return path

    def test_the_same_size_changes_nothing(self, labelled, start, checkpoint):
        assert_same_state(self.tune(labelled, checkpoint), weights(start.parent))

    def test_another_size(self, labelled, start, checkpoint):
        state = weights(start.parent)
        tuned = self.tune(labelled, checkpoint, "--img-size", 48, "--token-label-size", 6)
        expected = resample_abs_pos_embed(state["pos_embed"], [6, 6], num_prefix_tokens=1)
        assert torch.equal(tuned.pop("pos_embed"), expected)
        state.pop("pos_embed")
        assert_same_state(tuned, state)

    def test_other_classes(self, run, start, tmp_path, caplog):
        state = weights(start.parent)
        words = ["--token-label", "--token-label-size", 4, "--dense-weight", "0.0", "--num-classes", 7]
        tuned = self.tune(run, start, *words)
        assert "head.cls_fc.weight" in caplog.text
        assert "head.dense_fc.weight" in caplog.text
        changed = {name for name in state if not torch.equal(state[name], tuned[name])}
        assert changed == {f"head.{layer}.{kind}" for layer in ("cls_fc", "dense_fc") for kind in ("weight", "bias")}
        assert tuned["head.cls_fc.weight"].shape == (7, 32)
        assert not tuned["head.dense_fc.weight"].any()

    def test_the_same_classes_without_maps_keep_the_patches_classifier(self, run, start):
        state = weights(start.parent)
        tuned = weights(run("--finetune", start, "--token-label", "--dense-weight", 0, "--epochs", 1, name="tune"))
        assert torch.equal(tuned["head.dense_fc.weight"], state["head.dense_fc.weight"])
        assert not torch.equal(tuned["head.cls_fc.weight"], state["head.cls_fc.weight"])


@pytest.fixture(scope="module")
def mosaics(tmp_path_factory):
    """32 images of 4x4 coloured tiles, and maps of 4x4 places that say each tile's colour."""
    root, generator = tmp_path_factory.mktemp("mosaics"), np.random.default_rng(0)
    tiles = {}
    for number in range(32):
        tile = generator.integers(0, 3, (4, 4))
        name = f"{CLASSES[number % 3]}/{number}.png"
        pixels = 200 * np.eye(3)[tile].repeat(8, 0).repeat(8, 1) + generator.integers(0, 40, (32, 32, 3))
        for split in ("train", "val") if number < 3 else ("train",):
            (root / split / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(root / split / name)
        tiles[name] = torch.from_numpy(tile)[None]
    right = list(tiles.values())
    for folder, values in (("right", right), ("shuffled", right[1:] + right[:1])):
        with write_label_maps(root / folder, CLASSES, list(tiles), (4, 4), 1) as writer:
            for index, classes in enumerate(values):
                writer.put(index, LabelMap(torch.full((1, 4, 4), 9.0), classes))
    return root


def test_the_labels_are_those_of_the_patches(run, mosaics):
    """Through crops, flips and MixToken the patches' loss falls as far as the labels allow, by the right maps alone."""
    words = ["--token-label", "--smoothing", 0, "--epochs", 14, "-b", 16, "--lr", "1e-2", "--warmup-epochs", 2]
    words += ["--color-jitter", 0, "--scale", 0.6, 1]
    found = {}
    for kind in ("right", "shuffled"):
        folder = run(*words, "--token-label-data", mosaics / kind, name=kind, data=mosaics)
        found[kind] = [float(row["train_dense_loss"]) for row in rows(folder)]
    assert found["right"][-1] < 0.5 * found["right"][0]
    assert found["shuffled"][-1] > 1.5 * found["right"][-1]


@pytest.mark.e2e
@pytest.mark.slow
def test_two_processes(labelled, images, maps, tmp_path):
    """The gradient of the first step is that of one process; then what no loss reaches is no obstacle."""
    common = ["--token-label", "--opt", "momentum", "--momentum", 0, "--weight-decay", 0, "--warmup-epochs", 0]
    first = ["--token-label-data", maps, "--epochs", 1, "--max-steps", 1, "--no-mix-token"]
    start = weights(labelled(*common, *first, "-b", 8, "--lr", 0, name="start"))
    one = weights(labelled(*common, *first, "-b", 8, "--lr", 1, name="one"))
    words = [images, *TINY, *common, "-b", 4, "--output", "runs", "--lr", 1]
    process = torchrun(tmp_path, "train.py", *words, *first, "--experiment", "two")
    assert process.returncode == 0, process.stderr[-3000:]
    for name, value in weights(tmp_path / "runs" / "two").items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(value - start[name], one[name] - start[name], rtol=1e-5, atol=1e-5, msg=name)
    assert not torch.equal(one["head.dense_fc.weight"], start["head.dense_fc.weight"])
    process = torchrun(
        tmp_path, "train.py", *words, "--lr", 0.01, "--dense-weight", 0, "--epochs", 1, "--experiment", "silent"
    )
    assert process.returncode == 0, process.stderr[-3000:]
    assert float(rows(tmp_path / "runs" / "silent")[0]["train_class_loss"]) > 0
