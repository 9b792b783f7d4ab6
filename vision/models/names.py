"""The published names of the models (``SoT_Tiny``, ``So_vit_7``, ...), registered beside timm's spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.models import generate_default_cfgs, register_model

from vision.models import so_vit, sot
from vision.models.builder import model_cfg
from vision.models.sot import SoT

__all__: list[str] = []

_MODELS: dict[str, Callable[..., SoT]] = {
    "SoT_Tiny": sot.sot_tiny,
    "SoT_Small": sot.sot_small,
    "SoT_Base": sot.sot_base,
    "So_vit_7": so_vit.so_vit_7,
    "So_vit_10": so_vit.so_vit_10,
    "So_vit_14": so_vit.so_vit_14,
    "So_vit_19": so_vit.so_vit_19,
}
default_cfgs = generate_default_cfgs({f"{name}.untrained": model_cfg() for name in _MODELS})


def _register(name: str, create: Callable[..., SoT]) -> None:
    def create_by_published_name(pretrained: bool = False, **kwargs: Any) -> SoT:
        return create(pretrained, **kwargs)

    create_by_published_name.__name__ = create_by_published_name.__qualname__ = name
    create_by_published_name.__doc__ = create.__doc__
    globals()[name] = register_model(create_by_published_name)


for _name, _create in _MODELS.items():
    _register(_name, _create)
