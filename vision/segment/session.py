"""Segmentation as a kind of training: each pixel has a class. The rest of a run is that of `vision.training`."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from timm.utils import unwrap_model
from torch import Tensor, nn

from sot_base.class_weights import parse_class_weights
from sot_base.errors import UsageError
from vision.cli.device import default_workers, init_device
from vision.data import BadImages
from vision.evaluation.dry_run import dry_run
from vision.evaluation.evaluate import create_predict, evaluate
from vision.evaluation.metrics import collapsed_class, warn_if_collapsed
from vision.models.build import resolve_config
from vision.models.weights.load import load_state
from vision.segment.build import build_segmenter, complete_recipe
from vision.segment.count_pixels import check_classes, count_pixels
from vision.segment.dataset import PairSet, eval_loader, normalize, train_loader
from vision.segment.files import PairSource, read_class_names
from vision.segment.inference import create_pixel_predict, inference_options
from vision.segment.labels import LabelRules
from vision.segment.loss import SegmentationLoss
from vision.segment.metrics import ConfusionMatrix, require_pixels
from vision.segment.options import check_options, given_recipe
from vision.segment.transforms import train_transform
from vision.segment.weights import load_backbone, load_initial, load_pretrained
from vision.training.class_weights import weigh_classes
from vision.training.progress import Progress
from vision.training.resume import require_same, require_whole
from vision.training.saver import StepSaver
from vision.training.schedule import step_schedule
from vision.training.seeding import seed_run
from vision.training.session import Session
from vision.training.task import Task

__all__ = ["SegmentSession", "SegmentTask"]

_logger = logging.getLogger(__name__)


class SegmentTask(Task):
    """UperNet with its loss.

    Args:
        model: The model.
        criterion: The loss.
        device: Where the model is.
        images: ``mean`` and ``std`` of the model's input images.
    """

    def __init__(
        self, model: nn.Module, criterion: SegmentationLoss, device: torch.device, images: Mapping[str, Any]
    ) -> None:
        super().__init__(model, criterion, device)
        self.images = images

    def prepare(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return normalize(images, self.images["mean"], self.images["std"]), targets

    def share(self, count: int, planned: int) -> float:
        """1: the loss is the mean over all pixels of the update, however many images they are of."""
        return 1.0


class SegmentSession(Session):
    """A run of ``vision/segment/train.py``; an epoch is what lies between two validations.

    Args:
        args: The options of ``vision/segment/train.py``.

    Attributes:
        train_set: Training images.
        val_set: Validation images.
        recipe: What the model is built from, see `vision.segment.build.complete_recipe`.
        data: ``rules``, ``images`` (mean, std, short side) and ``class_names``.

    Raises:
        UsageError: for anything in the options, the data or a checkpoint that does not fit.
    """

    unit, metric, saver_class = "step", "miou", StepSaver

    def __init__(self, args: Namespace) -> None:
        check_options(args)
        super().__init__(args, init_device(args))
        rules = LabelRules(args.num_classes, args.ignore_index, args.reduce_zero_label)
        splits = (args.train_split, args.val_split)
        train, val = (PairSource(args.data_dir, split, args.max_pixels) for split in splits)
        names = read_class_names(args.data_dir, args.class_names, args.num_classes)
        self.recipe = complete_recipe(given_recipe(args, args.num_classes))
        seed_run(args.seed)
        model = build_segmenter(self.recipe)
        config = resolve_config({"mean": args.mean, "std": args.std}, model.encoder.backbone)
        images = {"mean": list(config["mean"]), "std": list(config["std"]), "short_side": args.short_side}
        self.data = {"rules": rules.to_dict(), "images": images, "class_names": names}
        if self.checkpoint is None:
            self._load_first_weights(model)
        else:
            self._check_same_run()
        sizes = (args.crop_size, args.short_side, args.scale)
        colours = (args.distort, images["mean"])
        transform = train_transform(*sizes, args.class_limit, args.hflip, *colours, args.ignore_index)
        self.train_set, self.val_set = PairSet(train, rules, transform), PairSet(val, rules)
        class_weights = self._check_pixels(train, val, rules, names)
        self.criterion = SegmentationLoss(args.ignore_index, args.aux_weight, args.dice_weight, class_weights)
        self.criterion.to(self.device)
        self.place_model(model)

    def _check_pixels(
        self, train: PairSource, val: PairSource, rules: LabelRules, names: Sequence[str] | None
    ) -> Tensor | None:
        """Make sure that there is something to learn and to measure; returns the weights of the classes, if any.

        Raises:
            UsageError: if there is not.
        """
        args, workers = self.args, default_workers(self.args.workers, self.args.world_size)
        balanced = args.class_weights is not None and parse_class_weights(args.class_weights) is None
        if self.checkpoint is None or balanced:
            enough = None if balanced else lambda counts: counts.classes.all()
            counts = count_pixels(train, rules, workers, enough)
            check_classes(counts, names, train.where.replace("/images/", "/annotations/"))
        if self.checkpoint is None:
            found = count_pixels(val, rules, workers, lambda counts: counts.classes.any())
            require_pixels(found.classes, val.where)
        if args.class_weights is None:
            return None
        shown = names or [f"class {index}" for index in range(args.num_classes)]
        pixels = counts.classes.tolist() if balanced else [1] * args.num_classes
        return weigh_classes(args.class_weights, shown, pixels, sum(pixels), args.num_classes, "pixel")

    def _load_first_weights(self, model: nn.Module) -> None:
        args = self.args
        options = ("pretrained", "backbone_checkpoint", "initial_checkpoint")
        given = [f"--{name.replace('_', '-')}" for name in options if getattr(args, name)]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} each give the backbone's weights; give one")
        if args.pretrained:
            unused = load_pretrained(model, self.recipe)
            _logger.info(
                f"backbone from the released weights of {args.model}; ignored: {', '.join(unused) or 'nothing'}"
            )
        if args.backbone_checkpoint:
            unused = load_backbone(model, args.backbone_checkpoint)
            _logger.info(f"backbone from {args.backbone_checkpoint}; ignored: {', '.join(unused) or 'nothing'}")
        if args.initial_checkpoint:
            _logger.info(f"{args.initial_checkpoint}: {load_initial(model, args.initial_checkpoint)}")

    def _check_same_run(self) -> None:
        """Make sure that the options are those of the checkpoint, and bring one of an older format up to date."""
        saved = self.checkpoint
        if not ({"segmenter", "data", "options"} <= saved.keys() and {"progress", "state"} & saved.keys()):
            raise UsageError(
                "--resume continues from the last.pth.tar of a run of vision/segment/train.py; "
                "--initial-checkpoint starts from other weights"
            )
        pairs = [(key, value, saved["segmenter"].get(key)) for key, value in self.recipe.items()]
        pairs += [(key, value, saved["data"].get(key)) for key, value in self.data.items()]
        pairs += [("images_per_step", self.images_per_step, saved.get("images_per_step"))]
        pairs += [(key, getattr(self.args, key), saved["options"].get(key)) for key in ("opt", "layer_decay")]
        require_same(pairs)
        if "state" in saved:
            self.checkpoint = {**saved, **_from_state(saved["state"], self.args.batch_size)}
        require_whole(self.checkpoint, self.resumed)

    def read_progress(self) -> Progress:
        """How far the run of the checkpoint has come; ``--val-steps`` and ``--steps`` may have changed since."""
        progress, args = Progress.from_saved(self.checkpoint["progress"], str(self.resumed)), self.args
        evaluated = not progress.step
        progress.epoch, progress.step = divmod(progress.updates, args.val_steps)
        at_the_end = progress.updates >= args.steps
        if evaluated and at_the_end:
            progress.epoch, progress.step = self.num_epochs, 0
        elif not evaluated and not progress.step:  # the evaluation is what comes next
            progress.epoch, progress.step = progress.epoch - 1, args.val_steps
        return progress

    def describe(self) -> dict[str, Any]:
        return {"segmenter": self.recipe, "data": self.data, **super().describe()}

    @property
    def num_epochs(self) -> int:
        return -(-self.args.steps // self.args.val_steps)

    def create_task(self) -> SegmentTask:
        return SegmentTask(self.model, self.criterion, self.device, self.data["images"])

    def create_train_loader(self) -> Any:
        args = self.args
        steps, loading = range(args.steps), self.loading()
        return train_loader(self.train_set, args.batch_size, steps, args.seed, interval=args.val_steps, **loading)

    def create_eval_loader(self) -> Any:
        return eval_loader(self.val_set, **self.loading())

    def schedule(self) -> dict[str, Any]:
        return step_schedule(self.args)

    def evaluate(self, model: nn.Module, loader: Any) -> dict[str, float]:
        args = self.args
        inference = inference_options(args, args.crop_size, args.short_side, self.autocast)
        model = unwrap_model(model)  # images of any size: not the compiled model
        predict = create_pixel_predict(model, inference, self.data["images"], self.memory_format)
        confusion = ConfusionMatrix(args.num_classes, args.ignore_index, self.device)
        evaluate(predict, loader, confusion.update)
        confusion.reduce()
        require_pixels(confusion.counts, self.val_set.source.where)
        names = self.data["class_names"] or [f"class {index}" for index in range(args.num_classes)]
        where = f"the validation of {args.model}, seed {args.seed}"
        warn_if_collapsed(collapsed_class(confusion.counts.sum(0), confusion.counts.sum(1), names), where)
        return confusion.compute()

    def log_row(
        self, progress: Progress, train: Mapping[str, float], metrics: Mapping[str, float], lr: float
    ) -> dict[str, Any]:
        row = {"step": progress.updates, "lr": lr, "train_loss": train["loss"], "bad_images": train["bad_images"]}
        return {**row, **metrics}

    def dry_run(self) -> None:
        args = self.args
        if self.checkpoint is not None:
            load_state(self.model, self.checkpoint["state_dict"], "--resume")
        count = min(8, len(self.train_set))
        bad_images = BadImages(args.bad_images)
        loader = train_loader(self.train_set, count, range(1), args.seed, 0, 1, 0, self.device, bad_images)
        pixels, classes = next(iter(loader))
        if not len(pixels):
            raise UsageError(f"no image can be read: {self.train_set.source.where}; repair the files")
        batch = normalize(pixels, self.data["images"]["mean"], self.data["images"]["std"]), classes
        facts = {"world_size": args.world_size, "recipe": self.recipe, "data": self.data}
        dry_run(args, facts, batch, create_predict(self.model, self.autocast), self.criterion)


def _from_state(state: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """``progress`` and ``saver`` of a checkpoint that has the older ``state`` instead."""
    rows, images = state["history"], state["loss_steps"] * batch_size
    evaluated = not state["step"] or (rows and rows[-1].get("step") == state["step"])
    progress = Progress(
        step=0 if evaluated else state["step"],
        updates=state["step"],
        loss_sum=state["loss_sum"] * batch_size,
        images=images,
        bad_images=state["bad_images"],
        history=rows,
    )
    best = state["best"] if state["best"] >= 0 else None
    return {"progress": vars(progress), "saver": {"best_metric": best}}
