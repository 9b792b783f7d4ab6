"""Options of the task ``sentence_prediction_mgcrp``: fairseq's own, the head's, and how the run uses the backbone."""

import dataclasses
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.tasks.sentence_prediction import SentencePredictionConfig
from omegaconf import II

from sot_core.options import HEAD_OPTIONS

__all__ = ["SentencePredictionMGCrPConfig", "option"]


def option(default: Any, text: str) -> Any:
    """A field of a fairseq dataclass with its help text."""
    return dataclasses.field(default=default, metadata={"help": text})


def _head_option_fields() -> list[tuple[str, Any, Any]]:
    """The head's options as fields of a fairseq dataclass."""
    fields = []
    for head_option in HEAD_OPTIONS:
        choices, kind = head_option.choices, head_option.type
        if choices:
            kind = ChoiceEnum(list(choices))
        elif kind is not bool:
            kind = Optional[kind]  # noqa: UP045
        fields.append((head_option.name, kind, option(head_option.default, head_option.help)))
    return fields


@dataclasses.dataclass
class _RunConfig(SentencePredictionConfig):
    multi_label: bool = option(
        False, "a row may have several labels, or none; taken from preprocess.json if it is there"
    )
    freeze_backbone: bool = option(False, "train the head alone; the encoder is in evaluation mode, without gradients")
    train_layers: Optional[int] = option(  # noqa: UP045
        None, "train the head and so many encoder layers from the top; those below are frozen, in evaluation mode"
    )
    keep_head: bool = option(False, "start from the head of --finetune-from-model, with its options and its labels")
    head_lr_scale: float = option(1.0, "the head's learning rate as a multiple of --lr, > 0")
    layer_decay: float = option(1.0, "learning rate of an encoder layer relative to the one above it, in (0, 1]")
    partial_backbone: bool = option(False, "accept a checkpoint that lacks encoder tensors")
    strict_head: bool = option(False, "a checkpoint's head of another shape is an error, not a warning")
    # what the checks before a run need to know of it
    save_dir: str = II("checkpoint.save_dir")
    no_save: bool = II("checkpoint.no_save")
    restore_file: str = II("checkpoint.restore_file")
    finetune_from_model: Optional[str] = II("checkpoint.finetune_from_model")  # noqa: UP045
    best_checkpoint_metric: str = II("checkpoint.best_checkpoint_metric")
    maximize_best_checkpoint_metric: bool = II("checkpoint.maximize_best_checkpoint_metric")
    cpu: bool = II("common.cpu")
    fp16: bool = II("common.fp16")
    bf16: bool = II("common.bf16")
    amp: bool = II("common.amp")
    tpu: bool = II("common.tpu")
    max_tokens: Optional[int] = II("dataset.max_tokens")  # noqa: UP045
    max_tokens_valid: Optional[int] = II("dataset.max_tokens_valid")  # noqa: UP045
    distributed_world_size: int = II("distributed_training.distributed_world_size")
    distributed_rank: Optional[int] = II("distributed_training.distributed_rank")  # noqa: UP045


SentencePredictionMGCrPConfig = dataclasses.make_dataclass(
    "SentencePredictionMGCrPConfig", _head_option_fields(), bases=(_RunConfig,), namespace={"__module__": __name__}
)
