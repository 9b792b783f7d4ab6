"""Train classification heads on the stored token states of a frozen encoder.

This package has what fairseq, Hugging Face and timm share: the store, the training, the selection of settings, the
command line and the base class of the estimators. Each side implements `sot_probe.command.ProbeSide` and
`sot_probe.store_writer.StateEncoder`.
"""
