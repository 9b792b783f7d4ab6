"""fairseq's transformer encoder with BERT's token types (segments)."""

from __future__ import annotations

from typing import Any

from fairseq.data import Dictionary
from fairseq.models.roberta.model import RobertaEncoder
from fairseq.models.transformer import TransformerEncoder
from fairseq.modules.transformer_sentence_encoder import init_bert_params
from torch import Tensor, nn

__all__ = ["SoTBertEncoder", "TokenTypeTransformerEncoder", "token_types"]


def token_types(tokens: Tensor, separator: int, padding: int) -> Tensor:
    """Tell a pair's first sentence from its second: 0 up to and including the first separator, then 1, 0 at padding.

    Args:
        tokens: Token numbers.
        separator: The number of ``</s>``.
        padding: The number of ``<pad>``.

    Shape:
        tokens (B, T) -> (B, T), integer.

    Example:
        >>> token_types(torch.tensor([[0, 5, 2, 6, 2, 1]]), separator=2, padding=1).tolist()
        [[0, 0, 0, 1, 1, 0]]
    """
    is_separator = tokens.eq(separator).long()
    separators_before = is_separator.cumsum(dim=1) - is_separator
    return (separators_before.gt(0) & tokens.ne(padding)).long()


class TokenTypeTransformerEncoder(TransformerEncoder):
    """A `TransformerEncoder` whose embedding adds a learned vector for the sentence that a token belongs to.

    The types follow from the tokens (:func:`token_types`), so fairseq's tasks, batches and hub code work as they are.

    Args:
        args: fairseq's model arguments; ``args.token_types`` is the number of types, 0 for none. With one type every
            token has it.
        dictionary: The input dictionary.
        embed_tokens: The word embedding.
    """

    def __init__(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding):
        super().__init__(args, dictionary, embed_tokens)
        self.separator = dictionary.eos()
        self.embed_token_types = (
            nn.Embedding(args.token_types, embed_tokens.embedding_dim) if args.token_types else None
        )

    def forward_embedding(self, src_tokens: Tensor, token_embedding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Embed the tokens, their types and their positions; then layer norm and dropout."""
        if token_embedding is None:
            token_embedding = self.embed_tokens(src_tokens)
        if self.embed_token_types is not None:
            types = token_types(src_tokens, self.separator, self.padding_idx)
            types = types.clamp(max=self.embed_token_types.num_embeddings - 1)
            token_embedding = token_embedding + self.embed_token_types(types)
        return super().forward_embedding(src_tokens, token_embedding)


class SoTBertEncoder(RobertaEncoder):
    """fairseq's `RobertaEncoder` around a `TokenTypeTransformerEncoder`, with BERT's layer norm constant throughout.

    Args:
        args: fairseq's model arguments, completed by an architecture of ``sot_bert``.
        dictionary: The input dictionary.
    """

    def __init__(self, args: Any, dictionary: Dictionary):
        super().__init__(args, dictionary)
        for module in self.modules():
            if hasattr(
                module, "normalized_shape"
            ):  # torch's LayerNorm, or the fused one that fairseq takes when it can
                module.eps = args.layer_norm_eps

    def build_encoder(
        self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding
    ) -> TokenTypeTransformerEncoder:
        """Build the transformer (called by `RobertaEncoder`)."""
        return TokenTypeTransformerEncoder(args, dictionary, embed_tokens).apply(init_bert_params)
