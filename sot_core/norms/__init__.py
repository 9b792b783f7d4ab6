"""Normalisations of MGCrP's matrices, (B, H, q, k) to the same shape; `sot_core.build` lists them by name."""
