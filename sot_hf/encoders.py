"""Encoders that have a name, as the commands of this package take them."""

from __future__ import annotations

from sot_text.minilm import find_minilm

__all__ = ["ENCODERS", "find_model"]

ENCODERS = {"gpt": "openai-community/openai-gpt"}  # name: that on the Hugging Face Hub


def find_model(encoder: str) -> str:
    """The folder or the name on the Hub of an encoder.

    Args:
        encoder: ``minilm`` (inside its package), ``gpt``, a folder, or a name on the Hub.

    Raises:
        UsageError: if the package of ``minilm`` is not installed.
    """
    return str(find_minilm()) if encoder == "minilm" else ENCODERS.get(encoder, encoder)
