"""RoBERTa whose classification heads see the padding mask, and whose checkpoints hold heads of any shape."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from fairseq.models.roberta import RobertaModel
from torch import Tensor

from sot_base.errors import UsageError
from sot_core import HeadConfig
from sot_fairseq.models.head import SentenceHead

__all__ = ["SoTRobertaModel"]

logger = logging.getLogger(__name__)

HEADS = "classification_heads."
POOLER = "pooler."  # BERT's pretrained pooler in a converted checkpoint
STOCK_HEAD = {"dense.weight", "dense.bias", "out_proj.weight", "out_proj.bias"}


class SoTRobertaModel(RobertaModel):
    """fairseq's `RobertaModel`, same parameters under the same names, with second-order classification heads.

    Attributes:
        freeze_backbone: The encoder runs in evaluation mode without gradients; only heads learn.
        train_layers: Number of encoder layers, from the top, that learn with the heads; what is below them is frozen,
            in evaluation mode. None: all of the encoder learns, unless ``freeze_backbone``.
        kept_head: Name of a checkpoint's head that becomes the model's; None: the head of the same name.
        allow_partial: A checkpoint may lack encoder tensors; they keep their initial values.
        strict_head: A checkpoint's head of the same name but another shape is an error instead of a warning.
    """

    freeze_backbone = False
    train_layers: int | None = None
    kept_head: str | None = None
    allow_partial = False
    strict_head = False

    def forward(
        self,
        src_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        **kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """As `RobertaModel.forward`; a second-order head gets the padding mask too.

        Shape:
            src_tokens (B, T) -> logits (B, K), or a pair of them in training with ``sum_loss``.
        """
        if classification_head_name is None:
            return super().forward(src_tokens, features_only, return_all_hiddens, **kwargs)
        head = self.get_head(classification_head_name)
        with torch.no_grad() if self.freeze_backbone else contextlib.nullcontext():
            features, extra = self.encoder(src_tokens, True, return_all_hiddens, **kwargs)
        if isinstance(head, SentenceHead):
            return head(features, src_tokens.eq(self.encoder.dictionary.pad())), extra
        return head(features), extra

    def get_head(self, name: str) -> torch.nn.Module:
        """The head of that name.

        Raises:
            UsageError: naming the heads there are.
        """
        if name not in self.classification_heads:
            raise UsageError(
                f"no classification head {name!r}: the model has {sorted(self.classification_heads) or 'none'}; "
                "give --classification-head-name"
            )
        return self.classification_heads[name]

    def register_classification_head(
        self,
        name: str,
        num_classes: int | None = None,
        inner_dim: int | None = None,
        head_settings: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add a head: fairseq's own for plain ``fusion="cls"`` or without ``head_settings``, else one of `sot_core`.

        Args:
            name: Its name in ``classification_heads``.
            num_classes: Classes, or regression targets.
            inner_dim: Width of the class token's dense layer; None: the encoder's.
            head_settings: Fields of `HeadConfig`; widths, pooler and class count are the model's.
            **kwargs: Passed to fairseq's own head.

        Raises:
            UsageError: for a name that no module can have, a setting out of range, or an option that only fairseq's
                own head has.
        """
        heads = self.classification_heads
        if not name or "." in name or (hasattr(heads, name) and name not in heads):
            raise UsageError(f"not a name for a head: --classification-head-name {name!r}; give letters and digits")
        if head_settings is None or _is_stock(head_settings):
            super().register_classification_head(name, num_classes, inner_dim, **kwargs)
            return
        args = self.args
        if args.quant_noise_pq or args.spectral_norm_classification_head:
            raise UsageError(
                "--quant-noise-pq and --spectral-norm-classification-head are options of fairseq's own head; "
                "leave them out or give --head-fusion cls"
            )
        width = args.encoder_embed_dim
        activation = "none" if args.pooler_activation_fn == "linear" else args.pooler_activation_fn
        try:
            config = HeadConfig(
                **head_settings,
                embed_dim=width,
                num_classes=num_classes,
                cls_pooler_dim=inner_dim or width,
                cls_pooler_activation=activation,
                cls_pooler_drop_rate=args.pooler_dropout,
            )
        except ValueError as error:
            raise UsageError(f"the head cannot be built: {error}; see docs/heads.md") from error
        self.classification_heads[name] = SentenceHead(config)

    def prepare_for_classification(self) -> None:
        """Switch off the gradients of what classification does not use or the user has frozen.

        The language model head gets no gradient from a classification loss; a parameter that is trained but never
        gets one makes distributed training fail or hang.

        Raises:
            UsageError: if the encoder has fewer layers than are to be trained.
        """
        encoder = self.encoder.sentence_encoder
        if not 0 <= (self.train_layers or 0) <= len(encoder.layers):
            count = len(encoder.layers)
            raise UsageError(f"the encoder has {count} layers: --train-layers {self.train_layers}; give 0 to {count}")
        embedding = encoder.embed_tokens.weight
        for parameter in self.encoder.lm_head.parameters():
            if parameter is not embedding:
                parameter.requires_grad_(False)
        if self.freeze_backbone or self.train_layers:
            self.encoder.requires_grad_(False)
        for module in self._top_modules():
            module.requires_grad_(True)

    def _top_modules(self) -> list[torch.nn.Module]:
        """The layers of ``train_layers``, and the norm after the last one, where there is one."""
        if not self.train_layers:
            return []
        encoder = self.encoder.sentence_encoder
        norm = [] if encoder.layer_norm is None else [encoder.layer_norm]
        return [*list(encoder.layers)[-self.train_layers :], *norm]

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; what is frozen of the encoder stays in evaluation mode."""
        super().train(mode)
        if self.freeze_backbone or self.train_layers:
            self.encoder.eval()
        for module in self._top_modules():
            module.train(mode)
        return self

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
        """Fit a checkpoint to this model: encoder complete, heads by name and shape, old names renamed.

        Heads of other names or shapes are ignored with one warning; stock code would look for ``dense`` and
        ``out_proj`` in every head.

        Raises:
            UsageError: if encoder tensors are missing and ``allow_partial`` is off, or a head differs and
                ``strict_head`` is on.
        """
        prefix = f"{name}." if name else ""
        saved_heads = self._rename_kept_head(_take(state_dict, prefix + HEADS))
        pooler = _take(state_dict, prefix + POOLER)
        if getattr(self.args, "load_checkpoint_heads", False):
            self._register_stock_heads(saved_heads)
        self._restore_heads(state_dict, prefix, saved_heads, pooler)
        super().upgrade_state_dict_named(state_dict, name)
        self._complete_encoder(state_dict, prefix)

    def _rename_kept_head(self, saved: dict[str, Tensor]) -> dict[str, Tensor]:
        """Give the kept head the name of the model's; a checkpoint of this very run has it under that name."""
        if self.kept_head is None:
            return saved
        (own,) = self.classification_heads
        if any(key.startswith(f"{own}.") for key in saved):
            return saved
        kept = f"{self.kept_head}."
        return {f"{own}.{key.removeprefix(kept)}": value for key, value in saved.items() if key.startswith(kept)}

    def _register_stock_heads(self, saved: Mapping[str, Tensor]) -> None:
        """Register fairseq's own heads of a published checkpoint (``roberta.large.mnli``), as stock code does."""
        for head in {key.split(".")[0] for key in saved} - set(self.classification_heads):
            tensors = {
                key.removeprefix(f"{head}."): value for key, value in saved.items() if key.startswith(f"{head}.")
            }
            if set(tensors) == STOCK_HEAD:
                self.register_classification_head(head, len(tensors["out_proj.weight"]), len(tensors["dense.weight"]))

    def _complete_encoder(self, state_dict: dict[str, Any], prefix: str) -> None:
        own = {f"{prefix}encoder.{key}": value for key, value in self.encoder.state_dict().items()}
        positions = f"{prefix}encoder.sentence_encoder.embed_positions.weight"
        if positions in state_dict and len(state_dict[positions]) > len(own[positions]):
            state_dict[positions] = state_dict[positions][: len(own[positions])]  # a smaller --max-positions
        language_model = f"{prefix}encoder.lm_head."
        backbone = {key for key in own if not key.startswith(language_model) and not key.endswith(".version")}
        missing = backbone - state_dict.keys()
        elsewhere = {f"{prefix}{key}" for key in self.state_dict()} - own.keys()
        saved = {key: value for key, value in state_dict.items() if key.startswith(prefix) and key not in elsewhere}
        differing = {key for key, value in saved.items() if key not in own or value.shape != own[key].shape}
        logger.info("%d of %d backbone tensors loaded", len(backbone - missing - differing), len(backbone))
        if differing:
            raise UsageError(
                f"the checkpoint is of another architecture, {len(differing)} tensors differ: "
                f"{_some(_differences(differing, saved, own))}; give --arch and the sizes of that checkpoint"
            )
        if missing and not self.allow_partial:
            raise UsageError(
                f"the checkpoint lacks {len(missing)} of {len(backbone)} backbone tensors: {_some(sorted(missing))}; "
                "give --arch and the sizes of that checkpoint, or --partial-backbone to draw the missing ones"
            )
        for key in own.keys() - state_dict.keys():
            state_dict[key] = own[key]

    def _restore_heads(
        self, state_dict: dict[str, Any], prefix: str, saved: Mapping[str, Tensor], pooler: Mapping[str, Tensor]
    ) -> None:
        left_out = sorted({key.split(".")[0] for key in saved} - set(self.classification_heads))
        if left_out:
            logger.warning("heads of the checkpoint that this model does not have are ignored: %s", ", ".join(left_out))
        for head_name, head in self.classification_heads.items():
            own = {f"{head_name}.{key}": value for key, value in head.state_dict().items()}
            in_checkpoint = {key: value for key, value in saved.items() if key.startswith(f"{head_name}.")}
            fits = {key: value.shape for key, value in in_checkpoint.items()} == {k: v.shape for k, v in own.items()}
            if not fits and in_checkpoint:
                self._report_reset(head_name, own, in_checkpoint)
            source = dict(in_checkpoint) if fits else own
            if not in_checkpoint:
                for key, value in pooler.items():  # a fresh head starts from BERT's pretrained pooler
                    if getattr(own.get(f"{head_name}.{key}"), "shape", None) == value.shape:
                        source[f"{head_name}.{key}"] = value
            for key, value in source.items():
                state_dict[f"{prefix}{HEADS}{key}"] = value

    def _report_reset(self, name: str, own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
        differing = _differences(own.keys() | saved.keys(), saved, own)
        message = f"classification head {name!r} of the checkpoint has another shape: {'; '.join(differing)}"
        if self.strict_head:
            raise UsageError(f"{message}; give the head's options of that checkpoint, or leave out --strict-head")
        logger.warning("%s; all of its tensors are re-initialised: %s", message, ", ".join(sorted(own)))


def _is_stock(head_settings: Mapping[str, Any]) -> bool:
    """Whether fairseq's own head is what the settings describe."""
    return head_settings.get("fusion") == "cls" and head_settings.get("feature_norm", "none") == "none"


def _take(state_dict: dict[str, Any], prefix: str) -> dict[str, Tensor]:
    """Remove the entries under a prefix from a state dict and return them without it."""
    return {key.removeprefix(prefix): state_dict.pop(key) for key in [k for k in state_dict if k.startswith(prefix)]}


def _some(items: list[str]) -> str:
    return ", ".join(items[:5]) + (", ..." if len(items) > 5 else "")


def _differences(keys: Iterable[str], saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Describe how the shapes of two state dicts differ: ``<key> <saved shape> -> <own shape>``."""
    shapes = ((key, _shape(saved, key), _shape(own, key)) for key in sorted(keys))
    return [f"{key} {before} -> {after}" for key, before, after in shapes if before != after]


def _shape(tensors: Mapping[str, Tensor], key: str) -> str:
    return str(list(tensors[key].shape)) if key in tensors else "absent"
