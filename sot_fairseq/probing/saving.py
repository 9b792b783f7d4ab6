"""A probe's head with its encoder as a folder that ``sot_fairseq.from_pretrained`` loads."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sot_base.atomic import atomic_folder
from sot_base.torch_files import save_torch
from sot_core import HeadConfig
from sot_fairseq.probing.encoding import ProbeTask
from sot_fairseq.runs.checks import DESCRIPTION_FILES
from sot_probe.layer_head import LayerHead
from sot_text.formats.architecture import BertArchitecture
from sot_text.formats.fairseq_classifier import FairseqClassifier

__all__ = ["save_classifier"]


def save_classifier(task: ProbeTask, head: LayerHead, settings: Mapping[str, Any], folder: Path) -> None:
    """Write ``checkpoint_best.pt`` and what describes the data; it replaces a folder that is there.

    Args:
        task: Data and encoder.
        head: The trained head, with the layers of the encoder that were trained with it.
        settings: Fields of `HeadConfig` it was made from.
        folder: Where to write.

    Raises:
        UsageError: if the encoder's weights cannot be read.
    """
    model, _ = task.load_model()
    if head.top_layers is not None:
        head.top_layers.load_into(model.encoder.sentence_encoder)
    args = task.cfg.model
    sizes = BertArchitecture(
        layers=args.encoder_layers,
        embed_dim=args.encoder_embed_dim,
        ffn_dim=args.encoder_ffn_embed_dim,
        heads=args.encoder_attention_heads,
        max_positions=args.max_positions,
        token_types=getattr(args, "token_types", 0),
        activation=args.activation_fn,
        layer_norm_eps=getattr(args, "layer_norm_eps", 1e-5),
    )
    config = HeadConfig(
        **settings,
        embed_dim=sizes.embed_dim,
        num_classes=task.header.num_classes,
        cls_pooler_dim=sizes.embed_dim,
        cls_pooler_activation="none" if args.pooler_activation_fn == "linear" else args.pooler_activation_fn,
        cls_pooler_drop_rate=args.pooler_dropout,
    )
    classifier = FairseqClassifier(
        "bert" if task.encoder.bpe == "wordpiece" else "roberta",
        sizes,
        {name: value for name, value in model.state_dict().items() if name.startswith("encoder.")},
        head.head.state_dict(),
        config.to_dict(),
        task.header.labels,
        args.dropout,
        args.attention_dropout,
        multi_label=task.header.multi_label,
    )
    with atomic_folder(folder) as temporary:
        for name in DESCRIPTION_FILES:
            source = task.data / name
            if source.is_dir():
                shutil.copytree(source, temporary / name)
            elif source.is_file():
                (temporary / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(source, temporary / name)
        save_torch(classifier.checkpoint(), temporary / "checkpoint_best.pt")
