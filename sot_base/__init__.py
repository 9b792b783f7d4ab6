"""Shared by all packages of the toolkit: errors, atomic files, safe reading of checkpoints, downloads, tables."""
