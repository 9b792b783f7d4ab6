"""A second-order classification head on any encoder or decoder that transformers' ``AutoModel`` loads."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from sot_base.errors import UsageError
from sot_base.safetensors_checksum import add_checksum, check_checksum
from sot_core import ClassificationHead, Contributions
from sot_core.build import create_pooling
from sot_core.covariance_pooling import CovariancePool
from sot_core.layer_mix import LayerMix
from sot_core.layer_pair import join_layers
from sot_core.norms.alternatives import LearnableScale
from sot_hf.backbone import (
    check_loaded,
    drop_pooler,
    read_backbone_config,
    read_config_values,
    states_of_layers,
    without_pooler,
)
from sot_hf.configuration import CONFIG_ARGUMENTS, SoTConfig
from sot_hf.error_text import model_location
from sot_hf.model_card import write_model_card
from sot_hf.top_layers import top_modules

__all__ = ["SoTForSequenceClassification"]

logger = logging.getLogger(__name__)

WEIGHTS = "model*.safetensors"  # what save_pretrained writes, one file or several
# keyword arguments of from_pretrained that tell where files are
HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")


class SoTForSequenceClassification(PreTrainedModel):
    """Classify or score texts from the class token and the word tokens of a backbone.

    The class token of an encoder is its first one. A decoder has none: its last valid token takes its place.
    `class_weights`, float (K,), weighs the classes in the loss; it is not saved, None by default.

    Args:
        config: Backbone and head.
        backbone: A model to put the head on; None: a new one of random weights.

    Example:
        >>> from transformers import BertConfig
        >>> backbone = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
        >>> model = SoTForSequenceClassification(SoTConfig(backbone, head={"q_dim": 8}, num_labels=3)).eval()
        >>> model(torch.tensor([[101, 2003, 102]])).logits.shape
        torch.Size([1, 3])
    """

    config_class = SoTConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flash_attn_2 = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: SoTConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        if backbone is None:
            self.backbone = AutoModel.from_config(config.backbone, **without_pooler(config.backbone))
        else:
            self.backbone = backbone
            for module in backbone.modules():
                module._is_hf_initialized = True  # transformers' mark: keep the weights
        config.backbone = self.backbone.config
        self.classifier = ClassificationHead(config.head_config())
        mixed = len(config.layers or ()) > 1 and config.layer_pair is None
        self.layer_mix = LayerMix(len(config.layers)) if mixed else None
        self.register_buffer("class_weights", None, persistent=False)
        self.inputs = frozenset(inspect.signature(self.backbone.forward).parameters)
        self.post_init()
        self._settle_gradients()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a saved model of this class, or put a new head on a plain backbone.

        A new head on a BERT starts from BERT's pretrained pooler.

        Args:
            pretrained_model_name_or_path: A folder or a name on the Hub, of either kind.
            *args: Passed to `PreTrainedModel.from_pretrained`.
            **kwargs: What `PreTrainedModel.from_pretrained` takes; for a plain backbone also the fields of `SoTConfig`:
                ``num_labels``, ``head``, ``cls_position``...

        Raises:
            UsageError: if tensors are missing in the files or have other shapes there (new ones take the place of the
                latter with ``ignore_mismatched_sizes=True``), or the backbone is not a text encoder or decoder.

        Example:
            >>> model = SoTForSequenceClassification.from_pretrained(
            ...     "bert-base-cased", num_labels=2, head={"num_heads": 1, "q_dim": 56, "k_dim": 32, "drop_rate": 0.8}
            ... )  # doctest: +SKIP
        """
        path, config = pretrained_model_name_or_path, kwargs.get("config")
        if path is None:
            return super().from_pretrained(path, *args, **kwargs)
        hub = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        found = config
        if config is None or isinstance(config, SoTConfig):  # config.json says whether a head was saved with the model
            values = read_config_values(path, config, hub)
            if values.get("model_type") == SoTConfig.model_type:
                kwargs.pop("config", None)
                if config is None:
                    config, kwargs = SoTConfig.from_dict(values, return_unused_kwargs=True, **kwargs)
                return cls.from_saved(path, *args, config=config, **kwargs)
            found = read_backbone_config(path, values, hub, kwargs) if config is None else config.backbone
        kwargs.pop("config", None)
        own = {name: kwargs.pop(name) for name in CONFIG_ARGUMENTS if name in kwargs}
        if isinstance(config, SoTConfig):
            if own:
                raise TypeError(f"{', '.join(own)} beside config=SoTConfig(...): put them into the configuration")
        else:
            try:
                config = SoTConfig.from_backbone(found, **own)
            except ValueError as error:
                raise UsageError(
                    f"no head fits the backbone ({error}): {model_location(path)}; see docs/huggingface.md"
                ) from error
        return cls.from_backbone(path, config, **kwargs)

    @classmethod
    def from_saved(cls, path: Any, *args: Any, config: SoTConfig, **kwargs: Any) -> Any:
        """Load a model that was saved with its head.

        Args:
            path: Its folder, or its name on the Hub.
            *args: As `PreTrainedModel.from_pretrained`.
            config: Its configuration; ``config.json`` is not read again.
            **kwargs: As `PreTrainedModel.from_pretrained`.

        Raises:
            UsageError: As :meth:`from_pretrained`; also if a file's checksum differs.
        """
        wants_info, ignore = (kwargs.pop(name, False) for name in ("output_loading_info", "ignore_mismatched_sizes"))
        for file in Path(path, kwargs.get("subfolder") or "").glob(WEIGHTS):
            check_checksum(file)
        model, info = super().from_pretrained(
            path, *args, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
        )
        check_loaded(info, path, ignore)
        model._settle_gradients()  # loading makes new parameters, all of which learn
        if config.freeze_backbone or config.train_layers is not None:
            what = "is frozen" if config.freeze_backbone else f"is frozen below its top {config.train_layers} layers"
            logger.warning(
                "%s: the backbone %s, as it was when the model was saved; freeze_backbone(False) unfreezes it",
                *(path, what),
            )
        return (model, info) if wants_info else model

    @classmethod
    def from_backbone(cls, path: Any, config: SoTConfig, **kwargs: Any) -> Any:
        """Put a new head on a plain backbone; a BERT's starts from its pretrained pooler.

        Args:
            path: Folder or Hub name of the backbone.
            config: Backbone and head.
            **kwargs: As `PreTrainedModel.from_pretrained`.

        Raises:
            UsageError: As :meth:`from_pretrained`.
        """
        wants_info, ignore = (kwargs.pop(name, False) for name in ("output_loading_info", "ignore_mismatched_sizes"))
        backbone, info = AutoModel.from_pretrained(
            path, config=config.backbone, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
        )
        check_loaded(info, path, ignore)
        dense = None
        if backbone.config.model_type == "bert" and not info["missing_keys"]:
            dense = backbone.pooler.dense
        model = cls(config, backbone=backbone)
        started = dense is not None and model._start_from_pooler(dense)
        model.classifier.to(device=backbone.device, dtype=backbone.dtype)
        config.dtype = backbone.dtype
        config.architectures = [cls.__name__]
        model.name_or_path = config._name_or_path = str(path)
        logger.info("a new head on %s%s", path, ", its dense layer from BERT's pooler" if started else "")
        model.eval()
        return (model, info) if wants_info else model

    def _settle_gradients(self) -> None:
        """Leave no parameter that learns without a gradient."""
        drop_pooler(self.backbone)
        if self.config.freeze_backbone:
            self.freeze_backbone()
        elif self.config.train_layers is not None:
            self.train_top_layers(self.config.train_layers)

    def freeze_backbone(self, frozen: bool = True) -> None:
        """Train the head alone, the backbone in evaluation mode without gradients; with False, train everything.

        Parameters of a frozen backbone that are set to learn later on, such as LoRA's, do learn.
        """
        self.config.freeze_backbone, self.config.train_layers = frozen, None
        self.backbone.requires_grad_(not frozen)
        drop_pooler(self.backbone)
        self.train(self.training)

    def train_top_layers(self, count: int) -> None:
        """Train the head and the top layers of the backbone; what is below them is frozen, in evaluation mode.

        Nothing is stored for a backward pass through the frozen part. A norm after the last layer learns, too.

        Args:
            count: Number of layers; 0: the head alone.

        Raises:
            UsageError: as `sot_hf.top_layers.top_modules`.
        """
        trained = top_modules(self.backbone, count) if count else []
        self.freeze_backbone()
        if trained:
            self.config.freeze_backbone, self.config.train_layers = False, count
            for module in trained:
                module.requires_grad_(True)
            self.train(self.training)

    @torch.no_grad()
    def _start_from_pooler(self, pooler: nn.Linear) -> bool:
        """Copy BERT's pretrained pooler into the class token's dense layer, where there is one of that shape."""
        dense = getattr(self.classifier, "dense", None)
        if dense is None or dense.weight.shape != pooler.weight.shape:
            return False
        dense.weight.copy_(pooler.weight)
        dense.bias.copy_(pooler.bias)
        return True

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput | tuple[Tensor, ...]:
        """Logits, and the loss where ``labels`` are given.

        Without ``attention_mask`` every token counts. Padding may be on either side for a decoder. ``token_type_ids``
        are left out for backbones that have none.

        Shape:
            input_ids, attention_mask, token_type_ids, position_ids (B, T) or inputs_embeds (B, T, D); labels (B,) class
            indices or numbers, (B, K) for several regression targets or multi-label; logits (B, K).
        """
        tokens, outputs = self.encode(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        logits = self.classifier(*self.head_input(tokens, attention_mask))
        parts = logits if isinstance(logits, tuple) else (logits,)  # a pair in training with sum_loss
        loss = None
        if labels is not None:
            loss = sum(self._loss(part, labels) for part in parts)
        result = SequenceClassifierOutput(
            loss=loss,
            logits=sum(parts[1:], parts[0]),
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )
        return result.to_tuple() if return_dict is False else result

    def contributions(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Contributions:
        """Split the logits exactly into the contributions of the class token and of the words.

        Shape:
            As :meth:`forward` -> two tensors (B, K).

        Raises:
            ValueError: for ``aggre_all``, whose logits do not split.
        """
        tokens, _ = self.encode(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        return self.classifier.contributions(*self.head_input(tokens, attention_mask))

    def encode(self, **inputs: Any) -> tuple[Tensor, Any]:
        """The hidden states (B, T, D) that the head reads, (B, T, 2 D) of two layers, and the backbone's output."""
        mask = inputs["attention_mask"]
        if inputs.get("position_ids") is None and mask is not None and self.config.cls_position == "last":
            inputs["position_ids"] = (mask.long().cumsum(dim=-1) - 1).clamp_min(0)  # padding on the left shifts nothing
        given = {name: value for name, value in inputs.items() if value is not None}
        if "kwargs" not in self.inputs:
            given = {name: value for name, value in given.items() if name in self.inputs}
        for name in ("token_type_ids", "position_ids"):
            if name not in self.inputs:
                given.pop(name, None)
        if "use_cache" in self.inputs:
            given["use_cache"] = False
        wants_layers = bool(given.get("output_hidden_states", self.config.output_hidden_states))
        if self.config.layers is not None:
            given["output_hidden_states"] = True
        with contextlib.nullcontext() if self._backbone_learns(inputs.get("inputs_embeds")) else torch.no_grad():
            outputs = self.backbone(**given, return_dict=True)
        return self._read_layers(outputs, wants_layers), outputs

    def _read_layers(self, outputs: Any, kept: bool) -> Tensor:
        if self.config.layers is None:
            return outputs.last_hidden_state
        states = states_of_layers(outputs, self.config.layers)
        if not kept:  # the user did not ask for them
            outputs["hidden_states"] = None
        if self.config.layer_pair is not None:
            return join_layers("x_y", *states)
        return states[0] if self.layer_mix is None else self.layer_mix(states)

    def head_input(self, tokens: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What :meth:`encode` returned as the head takes it: class token first, and the padding mask."""
        tokens, padding = self.class_token_first(tokens, attention_mask)
        if self.config.layer_pair == "words_cls":
            tokens = join_layers("words_cls", *tokens.chunk(2, dim=-1))
        return tokens, padding

    def class_token_first(self, tokens: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens with the class token at index 0 and their padding mask, True at padding.

        Shape:
            (B, T, D), (B, T) -> (B, T, D), (B, T); for a decoder (B, 1 + T, D), (B, 1 + T): the last valid token goes
            first, and its old place is masked.
        """
        padding = None if attention_mask is None else attention_mask.eq(0)
        if self.config.cls_position == "first":
            return tokens, padding
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if padding is None:
            padding = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        last = (places * ~padding).amax(dim=1, keepdim=True)  # (B, 1)
        cls = tokens.gather(1, last.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
        words = padding | (places == last)
        return torch.cat((cls, tokens), dim=1), torch.cat((torch.zeros_like(words[:, :1]), words), dim=1)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        problem = self.config.problem_type or ("regression" if self.num_labels == 1 else "single_label_classification")
        if problem == "regression":
            return F.mse_loss(logits.float().view(-1), labels.float().view(-1))
        if problem == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits.float(), labels.float(), pos_weight=self.class_weights)
        return F.cross_entropy(logits.float(), labels.view(-1), weight=self.class_weights)

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; what is frozen of the backbone by its configuration stays in evaluation mode."""
        super().train(mode)
        if not self._backbone_learns():
            self.backbone.eval()
        elif self.config.train_layers is not None:
            self.backbone.eval()
            for module in top_modules(self.backbone, self.config.train_layers):
                module.train(mode)
        return self

    def _backbone_learns(self, inputs_embeds: Tensor | None = None) -> bool:
        """Whether something in or before the backbone wants a gradient, though it may have been frozen."""
        if not self.config.freeze_backbone or (inputs_embeds is not None and inputs_embeds.requires_grad):
            return True
        return any(parameter.requires_grad for parameter in self.backbone.parameters())

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """As `PreTrainedModel.save_pretrained`; weights get a checksum, the folder a ``README.md`` if it has none."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            for file in Path(save_directory).glob(WEIGHTS):
                add_checksum(file)
            write_model_card(self.config, save_directory)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module of the head as `sot_core` does (called by transformers for what no file has)."""
        if isinstance(module, CovariancePool):
            fresh = create_pooling(self.config.head_config())
            for name, buffer in fresh.named_buffers(recurse=False):
                module.get_buffer(name).copy_(buffer)
        elif isinstance(module, LearnableScale):
            nn.init.ones_(module.factor)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()
