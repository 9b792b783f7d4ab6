"""Classification: each image has one class."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import torch
from timm.data.random_erasing import RandomErasing
from timm.loss import create_classification_loss
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sot_base.errors import UsageError
from vision.cli.device import init_device
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
from vision.evaluation.metrics import ClassEvaluator
from vision.models.build import build_model, check_image_size, model_recipe, resolve_images, saved_recipe
from vision.models.dense_mixin import DenseOutput
from vision.models.weights.load import load_initial
from vision.training.progress import Progress
from vision.training.resume import require_same
from vision.training.schedule import epoch_schedule
from vision.training.seeding import seed_run
from vision.training.session import Session
from vision.training.task import Task, head_modules

__all__ = ["ClassificationSession", "HeadTask"]

Mixup = Callable[[Tensor, Any], tuple[Tensor, Any]]


class HeadTask(Task):
    """The task of a classifier with the second-order head, or any other.

    - The loss of a model that returns two logits in training (``sum_loss``) is the sum of their losses.
    - With a frozen backbone only the head is trained; the rest stays in evaluation mode, statistics included.

    Args:
        model: The model.
        criterion: The loss of logits and targets.
        device: Where the model is.
        freeze_backbone: Whether to train the head alone.
        erase: Random erasing of a batch of images.
        mixup: From images and targets to mixed ones.
        mixup_off_epoch: The epoch from which on nothing is mixed; 0: none.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        device: torch.device,
        freeze_backbone: bool = False,
        erase: Callable[[Tensor], Tensor] | None = None,
        mixup: Mixup | None = None,
        mixup_off_epoch: int = 0,
    ) -> None:
        super().__init__(model, criterion, device)
        self.erase, self.mixup, self.mixup_off_epoch = erase, mixup, mixup_off_epoch
        self._frozen: list[nn.Module] = []
        if freeze_backbone:
            head = {module for part in head_modules(model) for module in part.modules()}
            trained = {parameter for module in head for parameter in module.parameters()}
            self._frozen = [module for module in model.modules() if module not in head]
            for parameter in model.parameters():
                parameter.requires_grad_(parameter.requires_grad and parameter in trained)

    def train(self, mode: bool = True) -> HeadTask:
        super().train(mode)
        for module in self._frozen:
            module.training = False
        return self

    def start_epoch(self, epoch: int) -> None:
        if self.mixup is not None and self.mixup_off_epoch:
            self.mixup.mixup_enabled = epoch < self.mixup_off_epoch

    def make_targets(self, targets: Any) -> Any:
        """Turn what the loader yields beside the images into targets."""
        return targets

    def prepare(self, images: Tensor, targets: Any) -> tuple[Tensor, Any]:
        if self.erase is not None:
            images = self.erase(images)
        targets = self.make_targets(targets)
        return (images, targets) if self.mixup is None else self.mixup(images, targets)

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        outputs = self.trainable_module(input)
        if isinstance(outputs, DenseOutput):
            raise TypeError("logits of patches need labels: train with TokenLabelTask")
        if isinstance(outputs, Tensor):
            outputs = (outputs,)
        return {"loss": sum(self.criterion(output.float(), target) for output in outputs), "output": sum(outputs)}


class ClassificationSession(Session):
    """A run of ``vision/train.py`` on images with one class each.

    Args:
        args: The options of ``vision/train.py``.

    Attributes:
        train_set: Training images.
        val_set: Validation images.
        class_names: Classes in the order of the model's outputs, made from the training images.
        recipe: What the model is built from, see `vision.models.build.build_model`.
        data_config: timm's description of the model's input images.

    Raises:
        UsageError: for anything in the options, the data or a checkpoint that does not fit.
    """

    metric = "top1"

    def __init__(self, args: Namespace) -> None:
        device = init_device(args)
        resolve_options(args)
        self._open_data(args)
        recipe = self.create_recipe(args)
        super().__init__(args, device)
        if self.checkpoint is not None:
            recipe = self._check_same_run(recipe)
        seed_run(args.seed)
        model = self.build_model(recipe)
        self.data_config = resolve_images(args, model)
        check_image_size(model, recipe["name"], self.data_config["input_size"])
        self.initialize(model)
        if args.initial_checkpoint and self.checkpoint is None:
            load_initial(model, recipe["name"], args.initial_checkpoint, self.class_names)
        self.recipe = saved_recipe(recipe, model)
        self.place_model(model)

    def _open_data(self, args: Namespace) -> None:
        train, val = (
            open_source(args.data_dir, split, args.dataset, args.download, args.max_pixels)
            for split in (args.train_split, args.val_split)
        )
        names = train.class_names
        if len(names) < 2:
            raise UsageError(f"only one class, {names[0]}: {train.where}; expected a folder for each class in it")
        val_index = match_classes(val.class_names, names, val.where)
        if args.num_classes is not None and args.num_classes < len(names):
            raise UsageError(f"--num-classes {args.num_classes} is too small: {train.where} has {len(names)} classes")
        unused = [f"unused_{index}" for index in range(len(names), args.num_classes or 0)]
        self.class_names = [*names, *unused]
        self.train_set, self.val_set = self.create_train_set(train, args), ImageSet(val, class_index=val_index)

    def create_train_set(self, source: Source, args: Namespace) -> ImageSet:
        """The training images."""
        return ImageSet(source)

    def create_recipe(self, args: Namespace) -> dict[str, Any]:
        """What the options say of the model; of its head, the given fields alone."""
        return model_recipe(args, len(self.class_names), given_head_settings(args))

    def _check_same_run(self, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Make sure that the options are those of the checkpoint; returns its complete recipe."""
        if "recipe" not in self.checkpoint or "progress" not in self.checkpoint:
            raise UsageError(
                "--resume goes on with a run of vision/train.py; --initial-checkpoint starts from other weights"
            )
        saved, options = self.checkpoint["recipe"], self.checkpoint["options"]
        pairs = [(key, recipe[key], saved[key]) for key in ("name", "num_classes")]
        for key in sorted(recipe["kwargs"].keys() | saved["kwargs"].keys()):
            pairs.append((key, *(kwargs.get(key, "its default") for kwargs in (recipe["kwargs"], saved["kwargs"]))))
        pairs += [(f"head {key}", value, saved["head"].get(key)) for key, value in recipe["head"].items()]
        pairs += [("classes", self.class_names, self.checkpoint["class_names"])]
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
        criterion = create_classification_loss(smoothing=self.args.smoothing, soft_targets=self.mixing)
        return HeadTask(self.model, criterion, self.device, **self.task_options())

    def task_options(self) -> dict[str, Any]:
        """The arguments of `HeadTask` but for model, loss and device."""
        args = self.args
        erase = None
        if args.reprob:
            erase = RandomErasing(args.reprob, mode=args.remode, max_count=args.recount, device=self.device)
        return {
            "freeze_backbone": args.freeze_backbone,
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
        evaluator = ClassEvaluator(self.recipe["num_classes"], self.device)
        evaluate(create_predict(model, self.autocast, self.memory_format), loader, evaluator.update)
        return evaluator.compute(distributed=self.args.distributed)

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

    def dry_run(self) -> None:
        images = ImageSet(self.train_set.source)  # without label maps
        batch = next(iter(create_eval_loader(images, self.data_config, 8, device=self.device)))
        dry_run(self.args, self.facts(), batch, create_predict(self.model, self.autocast), cross_entropy)
