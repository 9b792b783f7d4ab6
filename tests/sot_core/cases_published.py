"""The dictionary of the published README."""

from torch import nn


def published(**changes):
    """The dictionary of the published README."""
    normalization = {
        "type": "svPN",
        "alpha": 0.5,
        "iterNum": 1,
        "svNum": 1,
        "regular": nn.Dropout(0.5),
        "input_dim": 14,
    }
    args = {"dim": 256, "num_heads": 6, "wr_dim": 14, "normalization": normalization}
    return {"type": "MGCrP", "fusion_type": "sum_fc", "args": args, **changes}
