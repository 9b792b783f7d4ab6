"""Classification: each image has one class."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from timm.data.random_erasing import RandomErasing
from timm.loss import create_classification_loss
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sot_base.errors import UsageError
from vision.cli.device import init_device
from vision.cli.recipe_notes import recipe_notes
from vision.cli.recipes import log_recipe
from vision.cli.resolve_options import resolve_options
from vision.cli.train_options import given_head_settings
from vision.data import (
    AnyBatchMixup,
    ImageSet,
    Source,
    create_eval_loader,
    create_train_loader,
    match_classes,
    open_source,
)
from vision.evaluation.dry_run import dry_run
from vision.evaluation.evaluate import create_predict, evaluate
from vision.evaluation.metrics import ClassEvaluator, warn_if_collapsed
from vision.evaluation.multi_label import MultiLabelEvaluator
from vision.models.build import build_model, check_image_size, model_recipe, resolve_images, saved_recipe
from vision.models.weights.initial import InitialCheckpoint
from vision.training.class_weights import WeightedCrossEntropy, weigh_classes
from vision.training.head_task import HeadTask, Mixup
from vision.training.progress import Progress
from vision.training.resume import require_same, require_whole
from vision.training.schedule import epoch_schedule
from vision.training.seeding import seed_run
from vision.training.session import Session

__all__ = ["ClassificationSession"]


class ClassificationSession(Session):
    """A run of ``vision/train.py`` on images with one class each.

    Args:
        args: The options of ``vision/train.py``.

    Attributes:
        train_set: Training images.
        val_set: Validation images.
        class_names: Classes in the order of the model's outputs, made from the training images.
        class_weights: (K,) what each of them counts in the loss; None: the same.
        recipe: What the model is built from, see `vision.models.build.build_model`.
        data_config: timm's description of the model's input images.

    Raises:
        UsageError: for anything in the options, the data or a checkpoint that does not fit.
    """

    metric, title = "top1", "top-1"
    min_classes: ClassVar[int] = 2
    multi_label: ClassVar[bool] = False
    plain_loss = staticmethod(cross_entropy)

    def __init__(self, args: Namespace) -> None:
        device = init_device(args)
        log_recipe(args.train_recipe)
        resolve_options(args)
        self._open_data(args)
        recipe = self.create_recipe(args)
        super().__init__(args, device)
        initial = None
        if self.checkpoint is not None:
            recipe = self._check_same_run(recipe)
        elif args.initial_checkpoint:
            initial = InitialCheckpoint(args.initial_checkpoint)
            recipe = initial.with_saved_head(recipe)
        seed_run(args.seed)
        model = self.build_model(recipe)
        self.data_config = resolve_images(args, model)
        check_image_size(model, recipe["name"], self.data_config["input_size"])
        self.initialize(model)
        if initial is not None:
            initial.load(model, recipe["name"], self.class_names, self.multi_label, args.strict_head)
        self.recipe = saved_recipe(recipe, model)
        self.place_model(model)

    def _open_data(self, args: Namespace) -> None:
        train, val = (self.open_split(args, split) for split in (args.train_split, args.val_split))
        names = train.class_names
        if len(names) < self.min_classes:
            raise UsageError(f"only one class, {names[0]}: {train.where}; expected a folder for each class in it")
        val_index = match_classes(val.class_names, names, val.where)
        if args.num_classes is not None and args.num_classes < len(names):
            raise UsageError(f"--num-classes {args.num_classes} is too small: {train.where} has {len(names)} classes")
        unused = [f"unused_{index}" for index in range(len(names), args.num_classes or 0)]
        self.class_names = [*names, *unused]
        self.train_set, self.val_set = self.create_train_set(train, args), self.create_val_set(val, val_index)
        self.class_weights = None
        if args.class_weights is not None:
            self.class_weights = self.weigh_classes(args.class_weights, train)

    def open_split(self, args: Namespace, split: str) -> Source:
        """The images of a split."""
        return open_source(args.data_dir, split, args.dataset, args.download, args.max_pixels)

    def create_train_set(self, source: Source, args: Namespace) -> ImageSet:
        """The training images."""
        return ImageSet(source)

    def create_val_set(self, source: Source, class_index: np.ndarray) -> ImageSet:
        """The validation images; ``class_index`` are the model's indices of their classes."""
        return ImageSet(source, class_index=class_index)

    def weigh_classes(self, option: str, source: Source) -> Tensor:
        """What each of the model's outputs counts in the loss."""
        counts = np.bincount(source.targets, minlength=len(source.class_names)).tolist()
        return weigh_classes(option, source.class_names, counts, len(source.targets), len(self.class_names))

    def create_recipe(self, args: Namespace) -> dict[str, Any]:
        """What the options say of the model; of its head, the given fields alone."""
        return model_recipe(args, len(self.class_names), given_head_settings(args))

    def _check_same_run(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Make sure that the options are those of the checkpoint; returns its complete recipe."""
        if "recipe" not in self.checkpoint or "progress" not in self.checkpoint:
            raise UsageError(
                "--resume continues a run of vision/train.py; --initial-checkpoint starts from other weights"
            )
        require_whole(self.checkpoint, self.resumed)
        saved, options = self.checkpoint["recipe"], self.checkpoint["options"]
        pairs = [(key, recipe[key], saved[key]) for key in ("name", "num_classes")]
        for key in sorted(recipe["kwargs"].keys() | saved["kwargs"].keys()):
            pairs.append((key, *(kwargs.get(key, "its default") for kwargs in (recipe["kwargs"], saved["kwargs"]))))
        pairs += [(f"head {key}", value, saved["head"].get(key)) for key, value in recipe["head"].items()]
        pairs += [("classes", self.class_names, self.checkpoint["class_names"])]
        pairs += [("multi_label", self.multi_label, self.checkpoint.get("multi_label", False))]
        for key in ("opt", "layer_decay"):
            given = getattr(self.args, key)
            pairs.append((key, given, options.get(key, given)))
        require_same(pairs)
        return saved

    def build_model(self, recipe: Mapping[str, Any]) -> nn.Module:
        """Build the model, with timm's weights if they are asked for."""
        return build_model(recipe, pretrained=self.args.pretrained and self.checkpoint is None)

    def initialize(self, model: nn.Module) -> None:
        """Change the initial weights, before those of a checkpoint are loaded."""

    def describe(self) -> dict[str, Any]:
        model = {"arch": self.recipe["name"], "recipe": self.recipe}
        data = {"class_names": self.class_names, "data_config": self.data_config}
        return {**model, **data, **super().describe()}

    @property
    def num_epochs(self) -> int:
        return self.args.epochs + self.args.cooldown_epochs

    @property
    def mixing(self) -> bool:
        """Whether the options ask for mixup or cutmix."""
        return self.args.mixup > 0 or self.args.cutmix > 0 or self.args.cutmix_minmax is not None

    def create_task(self) -> HeadTask:
        return HeadTask(self.model, self.create_criterion(), self.device, **self.task_options())

    def create_criterion(self) -> nn.Module:
        """The loss of logits and targets."""
        if self.class_weights is not None:
            return WeightedCrossEntropy(self.class_weights, self.args.smoothing).to(self.device)
        return create_classification_loss(smoothing=self.args.smoothing, soft_targets=self.mixing)

    def task_options(self) -> dict[str, Any]:
        """The arguments of `HeadTask` but for model, loss and device."""
        args = self.args
        erase = None
        if args.reprob:
            erase = RandomErasing(args.reprob, mode=args.remode, max_count=args.recount, device=self.device)
        return {
            "freeze_backbone": args.freeze_backbone,
            "train_layers": args.train_layers,
            "erase": erase,
            "mixup": self.create_mixup() if self.mixing else None,
            "mixup_off_epoch": args.mixup_off_epoch,
        }

    def create_mixup(self) -> Mixup:
        """Mixup and cutmix of images with their classes."""
        classes = {"label_smoothing": self.args.smoothing, "num_classes": self.recipe["num_classes"]}
        return AnyBatchMixup(**self.mixup_options(), **classes)

    def mixup_options(self) -> dict[str, Any]:
        """Arguments of ``timm.data.Mixup`` about images."""
        args = self.args
        alphas = {"mixup_alpha": args.mixup, "cutmix_alpha": args.cutmix, "cutmix_minmax": args.cutmix_minmax}
        return {**alphas, "prob": args.mixup_prob, "switch_prob": args.mixup_switch_prob, "mode": args.mixup_mode}

    def create_train_loader(self) -> Any:
        args = self.args
        return create_train_loader(
            self.train_set,
            self.data_config,
            args.batch_size,
            seed=args.seed,
            num_repeats=args.aug_repeats,
            no_aug=args.no_aug,
            train_crop_mode=args.train_crop_mode,
            scale=args.scale,
            ratio=args.ratio,
            hflip=args.hflip,
            vflip=args.vflip,
            color_jitter=args.color_jitter or None,
            auto_augment=args.aa or None,
            interpolation=args.train_interpolation,
            **self.loading(),
        )

    def create_eval_loader(self) -> Any:
        return create_eval_loader(self.val_set, self.data_config, self.args.batch_size, **self.loading())

    def schedule(self) -> dict[str, Any]:
        return epoch_schedule(self.args)

    def evaluate(self, model: nn.Module, loader: Any) -> dict[str, float]:
        evaluator = self.create_evaluator()
        evaluate(create_predict(model, self.autocast, self.memory_format), loader, evaluator.update)
        metrics = evaluator.compute(distributed=self.args.distributed)
        head = self.recipe["head"]
        kind = f"head {head['fusion']}, {head['pooling']}" if head else "its own head"
        where = f"the validation of {self.args.model}, {kind}, seed {self.args.seed}"
        warn_if_collapsed(evaluator.collapsed(self.class_names), where)
        return metrics

    def create_evaluator(self) -> ClassEvaluator | MultiLabelEvaluator:
        """What counts the predictions of an evaluation."""
        return ClassEvaluator(self.recipe["num_classes"], self.device)

    def column(self, ema: bool = False) -> str:
        return f"eval_{'ema_' if ema else ''}{self.metric}"

    def log_row(
        self, progress: Progress, train: Mapping[str, float], metrics: Mapping[str, float], lr: float
    ) -> dict[str, Any]:
        train = {f"train_{name}": value for name, value in train.items()}
        metrics = {f"eval_{name}": value for name, value in metrics.items()}
        return {"epoch": progress.epoch, **train, **metrics, "lr": lr}

    def facts(self) -> dict[str, Any]:
        """What follows from the options, in plain values, for a dry run."""
        return {"world_size": self.args.world_size, "data_config": self.data_config, "recipe": self.recipe}

    def plain_train_set(self) -> ImageSet:
        """The training images with the data's classes alone."""
        return ImageSet(self.train_set.source)

    def dry_run(self) -> None:
        batch = next(iter(create_eval_loader(self.plain_train_set(), self.data_config, 8, device=self.device)))
        predict = create_predict(self.model, self.autocast)
        dry_run(self.args, self.facts(), batch, predict, self.plain_loss, recipe_notes(self.args))
