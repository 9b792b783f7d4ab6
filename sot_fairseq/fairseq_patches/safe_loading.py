"""Safe loading of fairseq checkpoints: no pickle runs, and nothing is built from a configuration that was not checked.

Files are read by :mod:`sot_base.safe_checkpoint`. What fairseq then takes from them, its options, goes through
:mod:`sot_fairseq.fairseq_patches.checkpoint_config`.
"""

from __future__ import annotations

import argparse
import collections
import functools
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fairseq import checkpoint_utils
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf
from omegaconf.base import ContainerMetadata, Metadata

from sot_base.errors import UsageError
from sot_base.safe_checkpoint import allowed, harmless_classes
from sot_fairseq.fairseq_patches.checkpoint_config import check_configuration
from sot_fairseq.fairseq_patches.checkpoint_sizes import check_sizes
from sot_fairseq.fairseq_patches.plain_values import replace_eval
from sot_text.formats.checkpoint_file import read_fairseq_checkpoint

__all__ = ["load_safely", "model_options", "read_checked_checkpoint", "task_settings", "upgrade"]


def load_safely() -> None:
    """Let everything in fairseq load checkpoints through :func:`read_checked_checkpoint`, and evaluate no strings.

    With several processes, rank 0 sends the checkpoint to the others through ``torch.save`` and ``torch.load``, with
    its tensors taken out and its options in omegaconf's containers.
    """
    replace_eval()
    checkpoint_utils.load_checkpoint_to_cpu = _load_checkpoint_to_cpu
    if not hasattr(checkpoint_utils.load_model_ensemble_and_task, "is_safe"):
        checkpoint_utils.load_model_ensemble_and_task = _naming_damage(checkpoint_utils.load_model_ensemble_and_task)
    plain = harmless_classes()
    sent = (*plain, *omegaconf_classes(), distributed_utils._TensorPlaceholder)
    for module, name, classes in (
        (checkpoint_utils, "load_ema_from_checkpoint", plain),  # takes tensors alone
        (distributed_utils, "_broadcast_object_slow", sent),
    ):
        stock = getattr(module, name)
        if not hasattr(stock, "is_safe"):
            setattr(module, name, _with_classes(stock, classes))


def read_checked_checkpoint(path: str | os.PathLike[str], to_build: bool = False, lazy: bool = True) -> dict[str, Any]:
    """Read a fairseq checkpoint and check its configuration.

    Args:
        path: The file.
        to_build: Whether a model is built from the configuration: its sizes must then be those of the tensors.
        lazy: As of :func:`sot_base.safe_checkpoint.read_checkpoint`.

    Raises:
        UsageError: As :func:`sot_text.formats.checkpoint_file.read_fairseq_checkpoint`, or with the option of the
            configuration that is not allowed.
    """
    state = read_fairseq_checkpoint(path, omegaconf_classes(), lazy)
    where = os.path.abspath(path)
    if not isinstance(state["model"], Mapping):
        raise UsageError(f"no tensors under 'model': {where}; give a fairseq checkpoint")
    check_configuration(state, where)
    if to_build:
        for name in ("task", "model", "criterion"):
            if name == "criterion" and state.get("args") is None and name not in (state.get("cfg") or {}):
                continue  # as in conversions; fairseq-validate alone needs one, see `upgrade`
            options = _section(state, name, where)
            if name != "model" and state.get("args") is None and not options.get("_name"):
                raise UsageError(f"no name of the {name} in the checkpoint: {where}; get or save it again")
        check_sizes(state, where)
    return state


def model_options(state: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The options that the model of a checked checkpoint is built from.

    Raises:
        UsageError: If it has none.
    """
    return _section(state, "model", where)


def _section(state: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    if state.get("args") is not None:
        return vars(state["args"])
    options = (state.get("cfg") or {}).get(name)
    if not isinstance(options, (Mapping, argparse.Namespace)):
        raise UsageError(f"no options of the {name} in the checkpoint: {where}; get or save it again")
    return options if isinstance(options, Mapping) else vars(options)


def _load_checkpoint_to_cpu(
    path: str, arg_overrides: Mapping[str, Any] | None = None, load_on_all_ranks: bool = False
) -> dict[str, Any]:
    """Take the place of ``fairseq.checkpoint_utils.load_checkpoint_to_cpu``.

    Callers that build a model from the checkpoint give overrides; a training, whose model exists, gives none.
    """
    if PathManager.path_requires_pathmanager(path):
        raise UsageError(f"not a file on this machine: {path}; download it first")
    state = read_checked_checkpoint(path, to_build=arg_overrides is not None, lazy=False)
    return upgrade(state, arg_overrides or {}, os.path.abspath(path))


def upgrade(state: dict[str, Any], overrides: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a checked checkpoint the form that fairseq's present code expects, as its own function does.

    Args:
        state: The checkpoint; changed in place.
        overrides: Options that replace those of the checkpoint.
        where: The file, for messages.

    Raises:
        UsageError: If parts of it are missing or have other types.
    """
    try:
        if state.get("args") is not None:
            vars(state["args"]).update(overrides)
        if state.get("cfg") is not None:
            config = dict(state["cfg"])
            if "criterion" not in config and config["task"]["_name"] in CRITERION_REGISTRY:
                config["criterion"] = {"_name": config["task"]["_name"]}  # with its defaults
            state["cfg"] = OmegaConf.create(config, flags={"allow_objects": True})
            overwrite_args_by_name(state["cfg"], overrides)
        upgraded: dict[str, Any] = checkpoint_utils._upgrade_state_dict(state)
    except UsageError:
        raise
    except Exception as error:  # whatever fairseq, hydra and omegaconf make of a configuration that is not whole
        raise _not_whole(error, where) from None
    return upgraded


def _not_whole(error: Exception, where: str) -> UsageError:
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]  # omegaconf writes several lines
    return UsageError(f"not an intact fairseq checkpoint ({reason[:300]}): {where}; get or save it again")


def _naming_damage(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Report in one line what a model trips over that is built from a checkpoint's options."""

    @functools.wraps(stock)
    def load_model_ensemble_and_task(filenames: list[str], *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(filenames, *args, **kwargs)
        except (UsageError, OSError, MemoryError):
            raise
        except Exception as error:
            raise _not_whole(error, ", ".join(map(os.path.abspath, filenames))) from error

    load_model_ensemble_and_task.is_safe = True  # type: ignore[attr-defined]
    return load_model_ensemble_and_task


@functools.cache
def omegaconf_classes() -> tuple[Any, ...]:
    """What the options of a run are kept in: in old checkpoints, and in what processes send each other."""
    containers = (DictConfig, ListConfig, AnyNode, ContainerMetadata, Metadata)
    return (*containers, typing.Any, collections.defaultdict, dict, list, int)


def _with_classes(stock: Callable[..., Any], classes: Iterable[Any]) -> Callable[..., Any]:
    """Let ``torch.load`` build some classes while a function of fairseq runs."""

    @functools.wraps(stock)
    def function(*args: Any, **kwargs: Any) -> Any:
        with allowed(classes):
            return stock(*args, **kwargs)

    function.is_safe = True  # type: ignore[attr-defined]
    return function


def task_settings(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of the task, none in a checkpoint of an old version of fairseq."""
    settings = (state.get("cfg") or {}).get("task") or {}
    return settings if isinstance(settings, Mapping) else vars(settings)
