"""The arms of the measurement and what is compared with what, as the plan in docs/fine_tuning.md has them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ARMS", "ENCODER_SCALE", "MIDDLE", "PRIMARY", "SECONDARY", "Arm"]

ENCODER_SCALE = 0.3  # the encoder's learning rate, as a multiple of that of a head that was trained first
MIDDLE = "MIDDLE"  # stands for the number of the layer in the middle, 3 of 6
CLS = ("--head-fusion", "cls")
MGCRP = ("--head-fusion", "sum_fc", "--mgcrp-heads", "4", "--mgcrp-q", "24", "--mgcrp-k", "24", "--head-dropout", "0")


class Arm(NamedTuple):
    """A way of training.

    Attributes:
        words: Its options of `sot_hf.run_glue`.
        labels: Number of training rows; None: that of the command line.
        is_probed: Whether the head is trained first, on the frozen encoder.
    """

    words: tuple[str, ...]
    labels: int | None = None
    is_probed: bool = False


ARMS: dict[str, Arm] = {
    "cls": Arm(CLS),
    "mgcrp": Arm(MGCRP),
    "mgcrp-sum_loss": Arm(("--head-fusion", "sum_loss", *MGCRP[2:])),
    "cls-top1": Arm((*CLS, "--train_layers", "1")),
    "mgcrp-top1": Arm((*MGCRP, "--train_layers", "1")),
    "cls-top2": Arm((*CLS, "--train_layers", "2")),
    "mgcrp-top2": Arm((*MGCRP, "--train_layers", "2")),
    "cls-probed": Arm(CLS, is_probed=True),
    "mgcrp-probed": Arm(MGCRP, is_probed=True),
    "mgcrp-56x32": Arm(
        ("--head-fusion", "sum_fc", "--mgcrp-heads", "1", "--mgcrp-q", "56", "--mgcrp-k", "32", "--head-dropout", "0.5")
    ),
    "mgcrp-layer_norm": Arm((*MGCRP, "--mgcrp-head-norm", "layer_norm")),
    "mgcrp-words_cls": Arm((*MGCRP, "--layers", MIDDLE, "-1", "--layer_pair", "words_cls")),
    "mgcrp-x_y": Arm((*MGCRP, "--layers", MIDDLE, "-1", "--layer_pair", "x_y")),
    "cls-128": Arm(CLS, labels=128),
    "mgcrp-128": Arm(MGCRP, labels=128),
    "cls-512": Arm(CLS, labels=512),
    "mgcrp-512": Arm(MGCRP, labels=512),
}
# an arm: the one that it is compared with
PRIMARY = {
    "mgcrp": "cls",
    "mgcrp-sum_loss": "cls",
    "mgcrp-top1": "cls-top1",
    "mgcrp-top2": "cls-top2",
    "mgcrp-128": "cls-128",
    "mgcrp-512": "cls-512",
    "mgcrp-probed": "cls-probed",
    "mgcrp-56x32": "cls",
    "mgcrp-layer_norm": "cls",
    "mgcrp-words_cls": "cls",
    "mgcrp-x_y": "cls",
}
SECONDARY = {
    "cls-probed": "cls",
    "mgcrp-probed": "mgcrp",
    "mgcrp-sum_loss": "mgcrp",
    "mgcrp-top1": "mgcrp",
    "mgcrp-top2": "mgcrp",
    "mgcrp-56x32": "mgcrp",
    "mgcrp-layer_norm": "mgcrp",
    "mgcrp-words_cls": "mgcrp",
    "mgcrp-x_y": "mgcrp",
}
