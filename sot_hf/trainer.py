"""transformers' Trainer with a learning rate of its own for the head, which stops when it diverges."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import torch
from safetensors import SafetensorError
from torch.utils.data import Dataset, Sampler, SequentialSampler

from sot_base.errors import UsageError
from sot_hf.safe_resume import SafeResumeTrainer

__all__ = ["HeadTrainer"]


class HeadTrainer(SafeResumeTrainer):
    """`Trainer` whose head learns at a multiple of the learning rate; schedulers keep the multiple.

    Args:
        *args: As `Trainer`.
        head_lr_scale: The multiple (> 0).
        **kwargs: As `Trainer`.
    """

    def __init__(self, *args: Any, head_lr_scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.head_lr_scale = head_lr_scale

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Trainer.training_step`; a loss that is not finite ends the training, the checkpoints are kept.

        Raises:
            UsageError: naming the step.
        """
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        if not loss.isfinite():
            raise UsageError(
                f"the loss is not finite, training has diverged: step {self.state.global_step + 1}; "
                "lower --learning_rate, or give --max_grad_norm or --warmup_steps"
            )
        return loss

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler | None:
        """In the order of the rows, always: batches of like length would give predictions in another order."""
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """As `Trainer.save_model`; a full disk is told as one."""
        with self._full_disk_is_named():
            super().save_model(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self._full_disk_is_named():
            super()._save_checkpoint(*args, **kwargs)

    @contextlib.contextmanager
    def _full_disk_is_named(self) -> Iterator[None]:
        """Torch's and safetensors' own errors do not tell it."""
        try:
            yield
        except (RuntimeError, SafetensorError) as error:
            size = sum(parameter.nbytes for parameter in self.model.parameters())
            if shutil.disk_usage(self.args.output_dir).free > 3 * size:  # weights and Adam's two averages
                raise
            raise UsageError(
                f"no room for a checkpoint: {os.path.abspath(self.args.output_dir)}; make some, and go on with "
                "--resume_from_checkpoint last"
            ) from error

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As `Trainer.create_optimizer`; each of its groups is split into the backbone's part and the head's."""
        fresh = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if fresh and self.head_lr_scale != 1.0:
            head = {id(parameter) for parameter in self.model.classifier.parameters()}
            for group in list(optimizer.param_groups):
                own = [parameter for parameter in group["params"] if id(parameter) in head]
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in head]
                if own:
                    optimizer.add_param_group({**group, "params": own, "lr": group["lr"] * self.head_lr_scale})
        return optimizer
