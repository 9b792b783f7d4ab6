"""The top layers of a backbone: which modules they are, and how they run on stored states of the layer below them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from sot_base.errors import UsageError

__all__ = ["TopLayers", "load_top_layers", "top_modules"]

FINAL_NORMS = ("ln_f", "norm", "final_norm", "final_layer_norm", "final_layernorm")  # beside the list of layers


def top_modules(backbone: nn.Module, count: int) -> list[nn.Module]:
    """The top layers of a backbone (> 0), from below, and the norm after the last one, where there is one.

    Raises:
        UsageError: if the backbone has fewer layers, or does not hold its layers in a list of their own.
    """
    parent, layers = _find_layers(backbone)
    if count > len(layers):
        raise UsageError(f"the backbone has {len(layers)} layers: --train_layers {count}; give at most {len(layers)}")
    norms = [getattr(parent, name, None) for name in FINAL_NORMS]
    return [*layers[-count:], *(norm for norm in norms if isinstance(norm, nn.Module))]


def load_top_layers(backbone: nn.Module, trained: nn.Module, count: int) -> None:
    """Copy the weights of the top layers of one backbone into another."""
    for own, other in zip(top_modules(backbone, count), top_modules(trained, count), strict=True):
        own.load_state_dict(other.state_dict())


def _find_layers(backbone: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """The list of layers and the module that holds it."""
    count = backbone.config.get_text_config().num_hidden_layers
    found: dict[str, nn.ModuleList] = {}
    for name, module in backbone.named_modules():
        inner = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) == count and not inner:
            found[name] = module
    if len(found) != 1:
        kind = backbone.config.model_type
        raise UsageError(
            f"a {kind} does not hold its layers one by one: --train_layers; give --freeze_backbone instead"
        )
    ((name, layers),) = found.items()
    return backbone.get_submodule(name.rpartition(".")[0]), layers


class TopLayers(nn.Module):
    """A copy of the top layers of a model's backbone, which runs on the states of the layer below them.

    The backbone's own code makes masks and positions, on token number 0 everywhere: what it embeds is replaced by the
    given states. Lower layers and the word embeddings are not copied.

    Args:
        model: A `sot_hf.modeling.SoTForSequenceClassification`.
        count: Number of layers (> 0).

    Shape:
        tokens (B, T, D) as `sot_hf.token_states.TextEncoder` stores them, class token first, padding_mask (B, T), True
        at padding -> the same for the last layer, (B, T, D) and (B, T), for a decoder (B, 1 + T, D) and (B, 1 + T).

    Raises:
        UsageError: as :func:`top_modules`.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__()
        top_modules(model.backbone, count)  # checks the count
        _, layers = _find_layers(model.backbone)
        words, head = model.get_input_embeddings(), model.classifier
        left_out: dict[int, nn.Module] = {id(layer): nn.Identity() for layer in layers[:-count]}
        left_out |= {id(words): _NoWords(words.embedding_dim), id(head): nn.Identity()}
        self.model = copy.deepcopy(model, left_out)
        _, copied = _find_layers(self.model.backbone)
        del copied[:-count]
        self.model.backbone.config.get_text_config().num_hidden_layers = count
        self.model.config.layers = self.model.config.layer_pair = None  # of a head that was saved with the model
        self.model.layer_mix = None
        self.model.train_top_layers(count)
        self.last = model.config.cls_position == "last"

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.last:
            tokens = _class_token_last(tokens, padding_mask)
        attention_mask = None if padding_mask is None else (~padding_mask).long()
        ids = torch.zeros(tokens.shape[:2], dtype=torch.long, device=tokens.device)

        def start_here(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            return ((tokens, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": tokens})

        _, layers = _find_layers(self.model.backbone)
        handle = layers[0].register_forward_pre_hook(start_here, with_kwargs=True)
        try:
            states, _ = self.model.encode(input_ids=ids, attention_mask=attention_mask)
        finally:
            handle.remove()
        return self.model.class_token_first(states, attention_mask)


class _NoWords(nn.Module):
    """Word embeddings of zeros, (B, T) -> (B, T, D)."""

    def __init__(self, embedding_dim: int) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim

    def forward(self, input_ids: Tensor) -> Tensor:
        return torch.zeros(*input_ids.shape, self.embedding_dim, device=input_ids.device)


def _class_token_last(tokens: Tensor, padding_mask: Tensor | None) -> Tensor:
    """The sequence of a decoder from its stored states, where the last valid token stands first."""
    shifted = tokens.roll(-1, dims=1)
    if padding_mask is None:
        return shifted
    last = (~padding_mask).sum(dim=1) - 1
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return torch.where((places == last.unsqueeze(1)).unsqueeze(-1), tokens[:, :1], shifted)
