"""BatchNorm of the vectors before the classifiers, and layer normalisation of each head before the covariance."""

import copy

import pytest
import torch

from sot_core.build import FUSIONS
from sot_core.norms.features import HeadLayerNorm, apply_batch_norm, create_head_norm
from tests.sot_core.cases import assert_close, head, total

TOKENS = 5.0 + torch.randn(6, 9, 12, generator=torch.Generator().manual_seed(0))
both_modes = pytest.mark.parametrize("training", [False, True])


def standardized(vectors):
    return (vectors - vectors.mean(dim=0)) / (vectors.var(dim=0, unbiased=False) + 1e-5).sqrt()


def pooled(module, tokens=TOKENS):
    return module.pool(tokens if module.fusion.pools_cls else tokens[:, 1:])


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("pooling", ["gap", "mgcrp"])
def test_every_classifier_reads_normalised_features(pooling, fusion):
    module = head("mgcrp-svpn", fusion, pooling=pooling, feature_norm="batch_norm")
    cls = standardized(TOKENS[:, 0])
    words = standardized(pooled(module)) if module.fusion.uses_words else cls[:, :0]
    logits = {name: module.get_submodule(name)(x) for name, x in module.fusion.inputs(cls, words).items()}
    assert_close(total(module(TOKENS)), total(module.fusion.combine(logits, True)), rtol=1e-4)
    assert_close(module.features(TOKENS), module.fusion.features(cls, words), rtol=1e-4)


@pytest.mark.parametrize("fusion", [name for name, fusion in FUSIONS.items() if not fusion.pools_cls])
def test_contributions_add_up_to_the_logits(fusion):
    module = head("gap", fusion, feature_norm="batch_norm")
    for _ in range(50):
        module(TOKENS)
    module.eval()
    cls, words = module.contributions(TOKENS)
    assert_close(cls + words, module(TOKENS))
    without = head("gap", fusion)
    without.load_state_dict({key: value for key, value in module.state_dict().items() if "_norm." not in key})
    assert (without.eval()(TOKENS) - module(TOKENS)).abs().max() > 0.1


def test_there_is_nothing_to_learn_and_nothing_without_the_option():
    plain, module = head(), head(feature_norm="batch_norm")
    assert [name for name, _ in module.named_parameters()] == [name for name, _ in plain.named_parameters()]
    buffers = {f"{part}_norm.{name}" for part in ("cls", "word") for name in ("running_mean", "running_var")}
    buffers |= {"cls_norm.num_batches_tracked", "word_norm.num_batches_tracked"}
    assert module.state_dict().keys() - plain.state_dict().keys() == buffers
    assert plain.state_dict().keys() <= module.state_dict().keys()
    assert "cls_norm.running_mean" not in head(fusion="words", feature_norm="batch_norm").state_dict()
    assert "word_norm.running_mean" not in head(fusion="cls", feature_norm="batch_norm").state_dict()


def test_after_a_pooler_what_the_classifier_reads_is_normalised():
    module, seen = head("gap", cls_pooler_dim=7, feature_norm="batch_norm"), []
    module.out_proj.register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    module(TOKENS)
    assert_close(seen[0], standardized(torch.tanh(module.dense(TOKENS[:, 0]))), rtol=1e-4)


def test_dropout_comes_after_the_norm():
    module = head("gap", "words", num_classes=0, drop_rate=0.5, feature_norm="batch_norm")
    features = module(TOKENS)
    kept = features != 0.0
    assert 0.2 < kept.float().mean() < 0.8
    assert_close(features[kept], 2.0 * standardized(pooled(module))[kept], rtol=1e-4)


def test_a_batch_of_one_or_none_uses_the_running_statistics():
    module = head(feature_norm="batch_norm")
    for _ in range(50):
        module(TOKENS)
    before = copy.deepcopy(module.state_dict())
    one = module(TOKENS[:1])
    assert module(TOKENS[:0]).shape == (0, 3)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert_close(one, module.eval()(TOKENS[:1]))


def test_a_norm_over_processes_is_called_for_any_batch():
    class OverProcesses(torch.nn.BatchNorm1d):
        def forward(self, rows):
            return rows + 1.0

    rows = torch.randn(1, 5)
    assert torch.equal(apply_batch_norm(OverProcesses(5, affine=False), rows), rows + 1.0)


@both_modes
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, training):
    module = head("gap", feature_norm="batch_norm").train(training)
    half = copy.deepcopy(module).to(dtype)
    outputs, expected = half(TOKENS.to(dtype)), module(TOKENS)
    assert outputs.dtype == dtype
    assert (outputs.float() - expected).abs().max() < 0.1 * expected.abs().max()


@both_modes
def test_input_without_information(training):
    for tokens in (torch.zeros(3, 7, 12), 1e-12 * TOKENS, TOKENS[:1].expand(3, -1, -1), 1e4 * TOKENS):
        module, tokens = head(feature_norm="batch_norm").train(training), tokens.clone().requires_grad_()
        mask = torch.zeros(tokens.shape[:2], dtype=torch.bool)
        mask[1] = True
        logits = module(tokens, mask)
        (logits * torch.linspace(-1.0, 1.0, logits.numel()).view_as(logits)).sum().backward()
        assert logits.isfinite().all()
        assert tokens.grad.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_compiled_and_exported():
    module = head("gap", feature_norm="batch_norm")
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="eager")
    assert_close(compiled(TOKENS), module(TOKENS))
    module.eval()
    sizes = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=3)}
    program = torch.export.export(module, (TOKENS,), dynamic_shapes=(sizes,))
    assert_close(program.module()(TOKENS[:3]), module(TOKENS[:3]))


def test_a_gradient_flows_through_the_statistics():
    norm = torch.nn.BatchNorm1d(5, affine=False).double()
    rows = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: apply_batch_norm(norm, rows), rows)


def test_each_head_is_normalised_by_itself():
    norm = HeadLayerNorm(4)
    features, mask = torch.randn(3, 5, 8), torch.zeros(3, 5, dtype=torch.bool)
    mask[1, 2:] = True
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    expected = torch.cat([torch.nn.LayerNorm.forward(norm, part) for part in features.split(4, dim=-1)], dim=-1)
    assert_close(norm(features, mask)[~mask], expected[~mask])
    assert (norm(features, mask)[mask] == 0.0).all()


def test_the_scale_of_the_tokens_does_not_matter_after_a_head_norm():
    pool, plain = head(head_norm="layer_norm").pool, head().pool
    assert_close(pool(100.0 * TOKENS), pool(TOKENS), rtol=1e-4)
    assert (plain(100.0 * TOKENS) - plain(TOKENS)).abs().max() > 1.0


def test_an_unknown_name():
    with pytest.raises(ValueError, match="Unknown head_norm 'rms', expected one of"):
        create_head_norm("rms", 3)
