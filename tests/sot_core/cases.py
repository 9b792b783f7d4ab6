"""Every head that the names of the configuration make, for the tests that hold for all of them.

A new pooling, normalisation or fusion enters through its table in :mod:`sot_core.build`; options that a name alone
does not reach are listed here.
"""

import pytest
import torch
from hypothesis import settings

from sot_core import ClassificationHead, HeadConfig
from sot_core.build import FUSIONS, NORMALIZATIONS, POOLINGS

SIZES = {"embed_dim": 12, "num_classes": 3, "num_heads": 2, "q_dim": 5, "k_dim": 4}

# The ways to make one vector of the word tokens.
WORDS = {
    **{f"mgcrp-{name}": {"normalization": name} for name in NORMALIZATIONS},
    **{name: {"pooling": name} for name in POOLINGS if name != "mgcrp"},
    "dropcov": {"pooling": "dropcov", "channel_drop_rate": 0.0},  # nothing random
    "efficient": {"pooling": "efficient", "num_queries": 3},
    "attention-mlp": {"pooling": "attention", "attention_mlp": True},
    "mgcrp-sample": {"center": "sample"},
    "mgcrp-uncentred": {"center": None},
    "mgcrp-published": {"residual_eps": 1e-5, "center": "sample"},
    "mgcrp-two_values": {"num_singular_values": 2, "num_iters": 2},
    "mgcrp-all_values": {"num_singular_values": None, "num_iters": 3},
    "mgcrp-iterated": {"num_iters": 3, "alpha": 0.3},
    "mgcrp-wide": {"q_dim": 3, "k_dim": 6, "num_heads": 3},
    "mgcrp-bias": {"proj_bias": True, "center": None},
    "mgcrp-batch_norm_relu": {"projection": "batch_norm_relu"},
    "mgcrp-head_norm": {"head_norm": "layer_norm"},
    "gcp-batch_norm_relu": {"pooling": "gcp", "projection": "batch_norm_relu"},
    "gcp-head_norm": {"pooling": "gcp", "head_norm": "layer_norm"},
}
# The fusions do not depend on the pooling, but for the default one and one without a matrix.
RIVALS = [words for words, options in WORDS.items() if options.get("pooling") not in (None, "gcp", "gap")]
HEADS = [
    (words, fusion)
    for words in WORDS
    for fusion in FUSIONS
    if fusion == "sum_fc" or (fusion in ("concat", "words", "aggre_all") and words not in RIVALS)
] + [(words, fusion) for words in ("mgcrp-svpn", "gap") for fusion in ("sum_loss", "cls")]

# Poolings and fusions to put on a backbone, for the tests of the sides.
POOLINGS_AND_FUSIONS = [
    (pooling, fusion)
    for pooling in POOLINGS
    for fusion in FUSIONS
    if fusion == "sum_fc" or pooling in ("mgcrp", "gcp", "gap")
]

all_words = pytest.mark.parametrize("words", WORDS)
all_heads = pytest.mark.parametrize("words, fusion", HEADS)
examples = settings(derandomize=True, deadline=None, max_examples=25)


def config(words="mgcrp-svpn", fusion="sum_fc", **changes) -> HeadConfig:
    return HeadConfig(**{**SIZES, "fusion": fusion, **WORDS[words], **changes})


def head(words="mgcrp-svpn", fusion="sum_fc", **changes) -> ClassificationHead:
    return ClassificationHead(config(words, fusion, **changes))


SECOND_ORDER = [words for words in WORDS if hasattr(head(words).pool, "proj")]


def total(outputs):
    """The logits of a head as one tensor: those of ``sum_loss`` in training are a pair."""
    return sum(outputs) if isinstance(outputs, tuple) else outputs


def run(module, tokens, padding_mask=None, weights=None):
    """Outputs, the gradient of the tokens and those of the parameters, for a loss that weighs every output."""
    tokens = tokens.detach().clone().requires_grad_()
    module.zero_grad()
    outputs = total(module(tokens, padding_mask))
    if weights is None:
        weights = torch.linspace(-1.0, 1.0, outputs[0].numel(), dtype=outputs.dtype).view(outputs.shape[1:])
    (outputs * weights).sum().backward()
    grads = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
    return outputs.detach(), tokens.grad, grads


def assert_close(actual, expected, rtol=1e-5):
    """Relative to the largest entry, give or take a few roundings of numbers around 1."""
    assert actual.shape == expected.shape
    if expected.numel():
        error, bound = (actual - expected).abs().max(), rtol * expected.abs().max()
        assert error <= bound + 64.0 * torch.finfo(expected.dtype).eps, f"{error:g} > {bound:g}"
