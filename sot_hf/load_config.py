"""The configuration of a model: that of a plain backbone, or that of a model saved with its head."""

from __future__ import annotations

import os

from transformers import CONFIG_MAPPING, PretrainedConfig

from sot_base.errors import UsageError
from sot_hf.configuration import SoTConfig
from sot_hf.error_text import first_sentence, model_location

__all__ = ["load_config", "saved_labels"]

MODEL_TYPES = {"spanbert": "bert", "gpt": "openai-gpt"}  # names of --model_type that transformers does not have


def load_config(
    path: str, model_type: str | None = None, config_name: str | None = None, cache_dir: str | None = None
) -> PretrainedConfig:
    """Read the configuration of a model: an `SoTConfig` if it was saved with its head, else the backbone's.

    Args:
        path: Folder or name of the model.
        model_type: The kind of backbone, for a ``config.json`` that does not say; must agree with one that does.
        config_name: A ``config.json`` from elsewhere.
        cache_dir: Where downloads are kept.

    Raises:
        UsageError: If it cannot be read, or is of another kind.
    """
    source = config_name or path
    _check_path(path, cache_dir)
    wanted = None if model_type is None else MODEL_TYPES.get(model_type, model_type)
    if wanted is not None and wanted not in CONFIG_MAPPING:
        raise UsageError(f"no such model type: --model_type {model_type}; leave it out, or give for instance bert")
    try:
        config = _read(source, wanted, cache_dir)
    except UsageError:
        raise
    except Exception as error:  # whatever a configuration trips over that is not as transformers writes it
        raise UsageError(
            f"cannot load the model ({first_sentence(error)}): {model_location(source)}; give a model folder"
        ) from error
    found = config.backbone.model_type if isinstance(config, SoTConfig) else config.model_type
    if wanted is not None and found != wanted:
        raise UsageError(
            f"a {found} where --model_type {model_type} is given: {model_location(source)}; leave --model_type out"
        )
    return config


def saved_labels(config: PretrainedConfig) -> list[str] | None:
    """Names of the classes of a model saved with its head, in order; None for a backbone or a regression."""
    if not isinstance(config, SoTConfig) or config.num_labels < 2:
        return None
    return [str(config.id2label[number]) for number in range(config.num_labels)]


def _check_path(path: str, cache_dir: str | None) -> None:
    if os.path.isfile(path):
        raise UsageError(f"a file where a model's folder is expected: {os.path.abspath(path)}; give its folder")
    if os.path.exists(path):
        return
    if path.startswith((os.sep, ".", "~")) or path.count("/") > 1:
        raise UsageError(f"no such model folder: {os.path.abspath(path)}; check the path")
    if cache_dir is None and "HF_HOME" not in os.environ and os.path.expanduser("~") == "~":
        raise UsageError(f"no home directory to keep the download of {path} in: the cache; set HF_HOME to a folder")


def _read(source: str, wanted: str | None, cache_dir: str | None) -> PretrainedConfig:
    values, _ = PretrainedConfig.get_config_dict(source, cache_dir=cache_dir)
    if not values:
        raise OSError("no config.json")
    kind = values.get("model_type", wanted)
    if kind not in CONFIG_MAPPING:
        raise ValueError(f"config.json does not name a kind of model that transformers knows, but {kind!r}")
    config = CONFIG_MAPPING[kind].from_dict({**values, "model_type": kind})
    config.name_or_path = source
    return config
