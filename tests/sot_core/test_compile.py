"""Heads under torch.compile, torch.export and the tracer: one graph, the same numbers."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sot_core.math import token_projection
from tests.sot_core.cases import all_words, assert_close, head, run

SENSITIVE = ("mgcrp-epn", "mgcrp-all_values", "mgcrp-svpn_exact", "mgcrp-two_values")  # to rounding


def batch(masked):
    tokens, mask = torch.randn(4, 9, 12), torch.zeros(4, 9, dtype=torch.bool)
    mask[1, 6:] = True
    mask[2, 1:] = True
    return tokens, mask if masked else None


def check(module, backend, masked, rtol=1e-5):
    torch.compiler.reset()
    other = copy.deepcopy(module)
    compiled = torch.compile(other, fullgraph=True, backend=backend)
    tokens, mask = batch(masked)
    (outputs, grad, grads), expected = run(compiled, tokens, mask), run(module, tokens, mask)
    assert_close(outputs, expected[0], rtol)
    assert_close(grad, expected[1], rtol)
    for name, value in expected[2].items():
        assert_close(grads[f"_orig_mod.{name}"], value, rtol)
    for actual, value in zip(other.buffers(), module.buffers(), strict=True):
        assert_close(actual.double(), value.double(), rtol)


@all_words
def test_one_graph(words):
    check(head(words), "eager", masked=True, rtol=1e-2 if words in SENSITIVE else 1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("words", ["mgcrp-svpn", "mgcrp-svpn_exact", "gcp", "mgcrp-batch_norm_relu", "attention"])
def test_one_graph_backwards(words, masked):
    check(head(words), "aot_eager", masked, rtol=1e-2 if words in SENSITIVE else 1e-5)


@pytest.mark.slow
def test_compiled_code(tmp_path, monkeypatch):
    """In a cache of its own: code that was compiled for other kernels is not run."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    check(head(), "inductor", masked=True)


def test_compilers_see_torchs_own_operations(monkeypatch):
    """The hand-written step is for eager mode: compilers fuse the plain operations, exporters know them."""
    monkeypatch.setattr(token_projection._ProjectTokens, "apply", None)
    torch.compiler.reset()
    with pytest.raises(TypeError):
        head()(torch.randn(2, 9, 12))
    torch.compile(head(), fullgraph=True, backend="eager")(torch.randn(2, 9, 12))


@pytest.mark.parametrize(
    "words",
    ["mgcrp-svpn", "mgcrp-svpn_exact", "gcp", "moment", "gap", "mean_std", "gem", "max", "attention", "efficient"],
)
def test_export_with_any_batch_and_length(words):
    module = head(words).eval()
    sizes = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=3)}
    tokens, mask = batch(masked=True)
    program = torch.export.export(module, (tokens, mask), dynamic_shapes=(sizes, sizes))
    tokens, mask = torch.randn(3, 17, 12), torch.zeros(3, 17, dtype=torch.bool)
    mask[1, 4:] = True
    assert_close(program.module()(tokens, mask), module(tokens, mask), rtol=1e-3 if words in SENSITIVE else 1e-5)


@pytest.mark.parametrize("masked", [False, True])
@all_words
def test_a_training_step_waits_for_no_value(words, masked):
    """Fake tensors have none: what would make the host wait for a GPU, reading a value, raises."""
    with FakeTensorMode():
        module = head(words)
        tokens = torch.empty(4, 9, 12, requires_grad=True)
        logits = module(tokens, torch.empty(4, 9, dtype=torch.bool) if masked else None)
        logits.square().sum().backward()
        assert logits.shape == (4, 3)
        assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::torch.jit.TracerWarning")
def test_trace():
    module, tokens = head().eval(), torch.randn(2, 9, 12)
    traced = torch.jit.trace(module, (tokens,))
    tokens = torch.randn(2, 9, 12)
    assert_close(traced(tokens), module(tokens))
