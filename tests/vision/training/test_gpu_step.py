"""Steps of training and of evaluation on a GPU: the host waits for nothing before the log, or the end of the epoch.

torch's `GradScaler` waits once an update, for float16 alone: it asks whether to skip the update. Several processes
agree after every update whether a signal came.
"""

import pytest
import torch

from tests.fake_gpu import GPU, HostWait, no_waits
from tests.vision.conftest import TINY
from tests.vision.segment.conftest import TINY as TINY_SEGMENTER
from tests.vision.segment.conftest import shapes  # noqa: F401
from tests.vision.training.test_token_labeling import TINY as TINY_LVVIT
from tests.vision.training.test_token_labeling import maps  # noqa: F401
from vision.cli.config_file import parse_args
from vision.cli.train_options import train_parser
from vision.evaluation.evaluate import create_predict, evaluate
from vision.evaluation.metrics import ClassEvaluator
from vision.segment import session as segment_session
from vision.segment.inference import create_pixel_predict, inference_options
from vision.segment.metrics import ConfusionMatrix
from vision.segment.options import train_parser as segment_parser
from vision.segment.session import SegmentSession
from vision.train import open_session
from vision.training import classification
from vision.training.build_trainer import build_trainer
from vision.training.epoch import train_one_epoch

AUGMENTED = ("--mixup", "0.8", "--cutmix", "1", "--reprob", "0.5", "--smoothing", "0.1")

CLIPPED = ("--clip-grad", "1", "--grad-accum-steps", "2")


@pytest.fixture
def gpu(monkeypatch):
    """Let a session take the stand-in for its device."""

    def init_device(args):
        args.device, args.rank, args.local_rank, args.world_size, args.distributed = str(GPU), 0, 0, 1, False
        return GPU

    for module in (classification, segment_session):
        monkeypatch.setattr(module, "init_device", init_device)


def train_without_waiting(session):
    """Train to the end of the first epoch, where what is on its way is waited for."""
    trainer, progress = build_trainer(session)
    with pytest.raises(HostWait, match="settles what is on its way"), no_waits():
        train_one_epoch(trainer, progress)
    assert progress.updates == trainer.updates_per_epoch >= 2


def batches(pixels, targets):
    return [(torch.zeros(2, *pixels, device=GPU), torch.zeros(2, *targets, device=GPU, dtype=torch.int64))] * 2


@pytest.mark.parametrize(
    "words", [(), AUGMENTED, ("--class-weights", "balanced"), ("--clip-grad", "1", "--grad-accum-steps", "2")]
)
@pytest.mark.parametrize("kind", [("--head-pooling", "gcp"), ("--head-fusion", "sum_loss"), ("--freeze-backbone",)])
def test_classification(images, gpu, words, kind):
    args = parse_args(train_parser(), [str(images), *TINY, "-b", "4", *kind, *words])
    session = open_session(args)
    train_without_waiting(session)
    evaluator = ClassEvaluator(session.recipe["num_classes"], GPU, allowed=(0, 1), confusion=True)
    predict = create_predict(session.model, session.autocast)
    with no_waits():
        evaluate(predict, batches((3, 8, 8), ()), session.create_evaluator().update, evaluator.update)


@pytest.mark.parametrize("words", [(), AUGMENTED])
@pytest.mark.parametrize("with_maps", [True, False])
def test_token_labeling(images, maps, gpu, words, with_maps):  # noqa: F811
    given = ("--token-label-data", str(maps)) if with_maps else ("--dense-weight", "0")
    args = parse_args(train_parser(), [str(images), *TINY_LVVIT, "--token-label", *given, "-b", "4", *words])
    train_without_waiting(open_session(args))


@pytest.mark.parametrize("words", [(), ("--class-weights", "balanced"), ("--dice-weight", "0.5")])
def test_segmentation(shapes, gpu, words):  # noqa: F811
    words = [str(shapes), *TINY_SEGMENTER, "-b", "2", "--steps", "3", "--val-steps", "3", "--slide", *words]
    session = SegmentSession(parse_args(segment_parser(), words))
    trainer, progress = build_trainer(session)
    with pytest.raises(HostWait, match="settles what is on its way"), no_waits():
        train_one_epoch(trainer, progress)
    assert progress.updates == 3
    inference = inference_options(session.args, 64, 0, session.autocast)
    predict = create_pixel_predict(session.model, inference, session.data["images"], torch.contiguous_format)
    confusion = ConfusionMatrix(4, 255, GPU)
    with no_waits():
        evaluate(predict, batches((3, 96, 80), (96, 80)), confusion.update)
