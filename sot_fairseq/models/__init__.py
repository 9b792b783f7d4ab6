"""Encoders with second-order classification heads."""
