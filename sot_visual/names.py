"""The names that options of a visualisation may have, without the methods themselves: a command line needs no torch."""

from __future__ import annotations

__all__ = ["DEFAULT_METHOD", "METHODS", "PARTS"]

DEFAULT_METHOD = "contributions"
METHODS = ("contributions", "relevance", "grad_cam", "gradient_x_input", "integrated_gradients", "random")
PARTS = ("cls", "word", "both")
