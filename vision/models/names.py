"""The published names of the models (``SoT_Tiny``, ``So_vit_7``, ...), registered beside timm's spelling."""

from __future__ import annotations

import timm

from vision.models import so_vit, sot
from vision.models.register import register_variant

__all__: list[str] = []

PUBLISHED_NAMES = {
    **{f"SoT_{size}": f"sot_{size.lower()}" for size in ("Tiny", "Small", "Base")},
    **{f"So_vit_{depth}": f"so_vit_{depth}" for depth in (7, 10, 14, 19)},
}
default_cfgs = {
    name: so_vit.default_cfgs.get(model) or sot.default_cfgs[model] for name, model in PUBLISHED_NAMES.items()
}
for _name, _model in PUBLISHED_NAMES.items():
    register_variant(__name__, _name, timm.model_entrypoint(_model), timm.model_entrypoint(_model).__doc__)
