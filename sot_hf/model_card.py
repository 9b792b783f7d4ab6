"""The ``README.md`` that a saved model gets."""

from __future__ import annotations

import os
from pathlib import Path

from sot_base.atomic import atomic_file
from sot_hf.configuration import SoTConfig

__all__ = ["write_model_card"]

CARD = """---
library_name: transformers
pipeline_tag: text-classification
tags:
- sot
---

# {kind} with a second-order classification head

A `{kind}` backbone and the head `{pooling}` (fusion `{fusion}`) of
[SoT](https://arxiv.org/abs/2104.10935): the class token and the word tokens decide together.

- labels: {labels}
- backbone it started from: {base}

```python
import sot_hf  # registers the model
from transformers import pipeline

classify = pipeline("text-classification", model="PATH")
classify("A sentence.")
```
"""


def write_model_card(config: SoTConfig, folder: str | os.PathLike[str]) -> None:
    """Write ``README.md`` into `folder` unless it has one."""
    path = Path(folder) / "README.md"
    if path.exists() or not path.parent.is_dir():
        return
    labels = [str(config.id2label[index]) for index in sorted(config.id2label)]
    card = CARD.format(
        kind=config.backbone.model_type,
        pooling=config.head["pooling"],
        fusion=config.head["fusion"],
        labels="a number" if config.num_labels == 1 else ", ".join(labels),
        base=os.path.basename(config.name_or_path or config.backbone.name_or_path or "") or "random weights",
    )
    with atomic_file(path) as temporary:
        temporary.write_text(card, encoding="utf-8")
