"""Second-order classification heads for transformers: the part that every side of the toolkit imports."""

__version__ = "0.1.0"
