"""Train classification heads on the stored token states of a frozen encoder: what every side of the toolkit shares.

A side brings an encoder of its own kind (`sot_probe.store.StateEncoder`), its heads and the form of its models; the
store, the training, the choice of settings, the command line and the estimator's base class are here.
"""
