"""Weights from files: reading checkpoints, published names, and fitting tensors to a model."""
