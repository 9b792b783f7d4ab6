"""transformers' Trainer for classifiers: batches of similar length, the head's learning rate, runs that diverge."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import DataLoaderShard
from torch.utils.data import DataLoader, Dataset, Sampler, SequentialSampler
from transformers import EvalPrediction
from transformers.trainer_utils import EvalLoopOutput

from sot_base.errors import UsageError
from sot_base.finite import find_culprit, first_not_finite
from sot_base.later_values import LaterValues
from sot_base.loading_processes import LoadingContext, obey_the_trainer_alone
from sot_hf.batching import LengthBatchSampler, SortedByLength, row_lengths
from sot_hf.callbacks import EarlyStopping
from sot_hf.checkpoints import find_checkpoints
from sot_hf.whole_files import WholeFilesTrainer

__all__ = ["HeadTrainer"]


class HeadTrainer(WholeFilesTrainer):
    """`Trainer` whose head learns at a multiple of the learning rate; schedulers keep the multiple.

    With the strategy ``group_by_length`` training batches are those of `LengthBatchSampler`. Evaluation and prediction
    go from the longest row to the shortest; predictions come back in the order of the rows. A loss, a weight or an
    output that is not finite ends the run, and no model that has one is saved.

    Args:
        *args: As `Trainer`.
        head_lr_scale: The multiple (> 0).
        max_tokens: Most tokens of a training batch on one device, padding included; None: no limit.
        rows_limited: Whether ``per_device_train_batch_size`` limits the rows of such a batch, too.
        max_length: The longest row that the model takes; None: no limit.
        **kwargs: As `Trainer`.
    """

    def __init__(
        self,
        *args: Any,
        head_lr_scale: float = 1.0,
        max_tokens: int | None = None,
        rows_limited: bool = True,
        max_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.head_lr_scale, self.max_tokens = head_lr_scale, max_tokens
        self.rows_limited, self.max_length = rows_limited, max_length
        self._rate = self.args.learning_rate  # of the last step
        self._losses = LaterValues()
        self.args.logging_nan_inf_filter = False  # it would wait for the loss of every step, which is checked here
        self._sorted_loaders: dict[int, DataLoader] = {}
        self._measured: tuple[int, dict[str, float]] | None = None  # the last step with an evaluation, and its metrics
        if self.compute_metrics is not None:
            self.compute_metrics = self._finite_outputs_only(self.compute_metrics)

    def get_train_dataloader(self) -> DataLoader:
        """As `Trainer.get_train_dataloader`; rows of similar length go together."""
        args = self.args
        if self.train_dataset is None or args.train_sampling_strategy != "group_by_length":
            return super().get_train_dataloader()
        sampler = LengthBatchSampler(
            row_lengths(self.train_dataset),
            self._train_batch_size if self.rows_limited or self.max_tokens is None else None,
            args.seed if args.data_seed is None else args.data_seed,
            self.max_tokens,
            self.max_length,
            args.dataloader_drop_last,
            args.process_index,
            args.world_size,
        )
        loader = DataLoaderShard(
            self.train_dataset,
            device=args.device,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            _non_blocking=args.dataloader_pin_memory,
        )
        return self._with_obedient_processes(loader)

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        """As `Trainer.get_eval_dataloader`, from the longest row to the shortest."""
        return self._sorted_loader(self.eval_dataset if eval_dataset is None else eval_dataset)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """As `Trainer.get_test_dataloader`, from the longest row to the shortest."""
        return self._sorted_loader(test_dataset)

    def _sorted_loader(self, dataset: Any) -> DataLoader:
        """One loader for each dataset, made once: the Trainer would keep every one it makes, with its processes."""
        if id(dataset) not in self._sorted_loaders:
            loader = super().get_test_dataloader(SortedByLength(dataset))
            self._sorted_loaders[id(dataset)] = self._with_obedient_processes(loader)
        return self._sorted_loaders[id(dataset)]

    def _with_obedient_processes(self, loader: DataLoader) -> DataLoader:
        """Let the loader's processes obey this one alone."""
        if self.args.dataloader_num_workers and self.args.dataloader_multiprocessing_context in (None, "fork"):
            torch_loader = getattr(loader, "base_dataloader", loader)
            torch_loader.multiprocessing_context = LoadingContext()
            torch_loader.worker_init_fn = obey_the_trainer_alone
        return loader

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler | None:
        return SequentialSampler(eval_dataset) if self.args.world_size <= 1 else None

    def evaluation_loop(self, dataloader: DataLoader, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As `Trainer.evaluation_loop`; predictions and labels are in the order of the rows."""
        self._losses.settle()
        output = super().evaluation_loop(dataloader, *args, **kwargs)
        self._check_outputs(output.predictions)
        rows: SortedByLength = dataloader.dataset
        in_order = [
            None if values is None else rows.in_row_order(values) for values in (output.predictions, output.label_ids)
        ]
        return output._replace(predictions=in_order[0], label_ids=in_order[1])

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics: dict[str, float] = super()._evaluate(*args, **kwargs)
        self._measured = self.state.global_step, metrics
        return metrics

    def last_metrics(self) -> dict[str, float] | None:
        """What the training measured on `eval_dataset` after its last step.

        None if it ended with the weights of another step, or if only evaluations outside of it are in half precision.
        """
        args, step = self.args, self.state.global_step
        loaded = self.state.best_model_checkpoint if args.load_best_model_at_end else None
        is_last = loaded is None or Path(loaded).name == f"checkpoint-{step}"
        if self._measured is None or self._measured[0] != step or not is_last:
            return None
        return None if args.bf16_full_eval or args.fp16_full_eval else self._measured[1]

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Trainer.training_step`; a non-finite loss ends the training; its checkpoints are kept.

        On a GPU that is some steps later: nothing waits for the loss of a step.

        Raises:
            UsageError: naming epoch, step, learning rate, the first module that is not finite and the last checkpoint.
        """
        self._rate = self._get_learning_rate()
        loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
        self._losses.read(
            loss.view(1), partial(self._check_loss, model, inputs, self._when(self.state.global_step + 1))
        )
        return loss

    def _check_loss(self, model: Any, inputs: dict[str, Any], when: str, losses: Sequence[float]) -> None:
        if not math.isfinite(losses[0]):
            culprit = find_culprit(self.model, lambda: model(**self._prepare_inputs(inputs)))
            raise self._diverged("the loss is", culprit, when)

    def check_finite(self) -> None:
        """Refuse to save a model with a weight that is not finite.

        Raises:
            UsageError: As :meth:`training_step`.
        """
        self._losses.settle()
        weight = first_not_finite(self.model.named_parameters())
        if weight is not None:
            raise self._diverged("a weight is", f"the weight {weight}", self._when(self.state.global_step))

    def _finite_outputs_only(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def metrics(outputs: EvalPrediction, *args: Any, **kwargs: Any) -> Any:
            self._check_outputs(outputs.predictions)
            return function(outputs, *args, **kwargs)

        return metrics

    def _check_outputs(self, outputs: np.ndarray | None) -> None:
        if outputs is None or np.isfinite(outputs).all():
            return
        weight = first_not_finite(self.model.named_parameters())
        if self.state.global_step:
            raise self._diverged("outputs are", weight and f"the weight {weight}", self._when(self.state.global_step))
        rows = int((~np.isfinite(outputs)).reshape(len(outputs), -1).any(axis=1).sum())
        where = self.model.name_or_path or "the model"
        raise UsageError(
            f"the outputs of {rows} of {len(outputs)} rows are not finite: {where}; its training has diverged, train "
            "with a lower --learning_rate"
        )

    def _when(self, step: int) -> str:
        return f"step {step}, epoch {self.state.epoch or 0:.2f}, learning rate {self._rate:.3g}"

    def _diverged(self, what: str, culprit: str | None, when: str) -> UsageError:
        last = find_checkpoints(self.output)
        kept = f"the last good checkpoint is {os.path.abspath(last[-1])}" if last else "there is no checkpoint yet"
        return UsageError(
            f"{what} not finite, training has diverged: {when}, first in {culprit or 'the loss itself'}, {kept}; lower "
            "--learning_rate, or give --max_grad_norm or --warmup_steps"
        )

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """As `Trainer._run_epoch`; a resumed run that was finished does not train on."""
        stopped = any(isinstance(c, EarlyStopping) and c.is_over(self.state) for c in self.callback_handler.callbacks)
        if self.state.global_step >= self.state.max_steps or stopped:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)
        self._losses.settle()

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
