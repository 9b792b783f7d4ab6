"""The published numbers, reproduced to 1e-10 in float64; see tests/golden/README.md for where they come from.

Exceptions, one by one:
- ``MGCrP_unknownfusion`` (classifier.npz): the published code returns raw features for an unknown fusion; here that
  is an error (test_config.py).
- ``published_grad_*`` (mpn.npz): the hand-written backward is the transpose of the true gradient; compared after
  symmetrisation, where both agree.
- ``self_*`` (covariance.npz) and classifier_gcp_patched.npz: the published self-covariance divides by the channel count
  d instead of the n tokens; compared up to that factor.
- svNum >= 2 with iterNum = 1 has no golden values, being ill-posed; here it is an error (test_errors.py).
"""

import pytest
import torch

from sot_core import (
    ClassificationHead,
    HeadConfig,
    MultiheadCrossCovariancePool,
    cross_covariance,
    matrix_square_root,
    singular_value_power_norm,
)
from sot_core.build import create_normalization
from sot_core.published_form import PUBLISHED_NORMALIZATIONS
from sot_core.published_heads import Classifier, OnlyVisualTokensClassifier
from tests.support import golden_arrays, golden_index, need_shared, reference_fill

pytestmark = pytest.mark.usefixtures("float64")

CENTERS = {"token": "token", "sample": "sample", "none": None}
MGCRP_FILES = [
    *(f"mgcrp_d32h2w5_{center}_a{alpha}.npz" for center in CENTERS for alpha in (0.3, 0.5)),
    *(
        f"mgcrp_d48h6w8_{center}_{case}.npz"
        for center in CENTERS
        for case in ("sv1_it1_a0.5", "sv2_it2_a0.3", "sv3_it5_a0.5")
    ),
]
NORM_FILES = [f"mgcrp_norms_{center}.npz" for center in CENTERS]
CLASSIFIER_FILES = ["classifier.npz", "classifier_norms.npz", "classifier_gcp_patched.npz"]
SOVIT_FILES = ["sovit_head_p12q8_sv1.npz", "sovit_head_p6q9_sv2.npz", "sovit_head_p8q5_sv3.npz"]
OTHER_FILES = ["covariance.npz", "svpn.npz", "mpn.npz", "sovit_head_other.npz"]


def assert_same(actual, expected, rtol=1e-10):
    """Relative to the largest entry: single entries may cancel to almost nothing."""
    actual, expected = actual.detach().reshape(-1), expected.reshape(-1)
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= rtol * expected.abs().max()


def test_every_golden_file_has_a_test():
    folder = need_shared("reference", "head")
    known = {*MGCRP_FILES, *NORM_FILES, *CLASSIFIER_FILES, *SOVIT_FILES, *OTHER_FILES}
    assert {path.name for path in folder.glob("*.npz")} == known


def _pool(arrays, index, center, norm, weight, bias=None):
    dim, heads, width = index["dim"], index["num_heads"], index["wr_dim"]
    pool = MultiheadCrossCovariancePool(dim, heads, width, norm=norm, center=center, proj_bias=bias is not None)
    with torch.no_grad():
        pool.proj.weight.copy_(weight)
        if bias is not None:
            pool.proj.bias.copy_(bias)
    return pool


@pytest.mark.parametrize("name", MGCRP_FILES)
def test_mgcrp_with_svpn(name):
    arrays, index = golden_arrays(f"head/{name}"), golden_index(name)
    for case in index["cases"]:
        config = HeadConfig(
            index["dim"],
            2,
            k_dim=index["wr_dim"],
            alpha=case["alpha"],
            num_iters=case["iterNum"],
            num_singular_values=case["svNum"],
            residual_eps=1e-5,
        )
        norm = create_normalization(config)
        pool = _pool(arrays, index, CENTERS[index["center"]], norm, arrays["wr.weight"])
        with torch.no_grad():
            norm.start_vector.copy_(arrays["norm.weight"])
        tokens = arrays["tokens"].clone().requires_grad_()
        out = pool(tokens)
        (out * arrays["R"]).sum().backward()
        prefix = case["prefix"]
        assert_same(out, arrays[f"{prefix}.out"])
        assert_same(tokens.grad, arrays[f"{prefix}.grad_tokens"])
        assert_same(pool.proj.weight.grad, arrays[f"{prefix}.grad_wr_weight"])
        assert_same(norm.start_vector.grad, arrays[f"{prefix}.grad_start_vector"])


def _deflate(matrix, start, rank, num_iters):
    """The residual after ``rank`` singular values and the last of them, by the formula of the golden files."""
    for _ in range(rank):
        v = start.expand(*matrix.shape[:-2], -1)
        for _ in range(num_iters):
            u = torch.nn.functional.normalize((matrix @ v.unsqueeze(-1)).squeeze(-1), dim=-1)
            v = torch.nn.functional.normalize((u.unsqueeze(-2) @ matrix).squeeze(-2), dim=-1)
        s = torch.einsum("...q,...qk,...k", u, matrix, v)
        matrix = matrix - s[..., None, None] * u.unsqueeze(-1) * v.unsqueeze(-2)
    return matrix, s


@pytest.mark.parametrize("name", MGCRP_FILES)
def test_fast_path_stays_within_the_bound_of_the_omitted_term(name):
    """Leaving 1e-5 out changes each head's residual by less than 1e-5 / s^(1 - alpha), relatively."""
    arrays, index = golden_arrays(f"head/{name}"), golden_index(name)
    heads, width, center = index["num_heads"], index["wr_dim"], CENTERS[index["center"]]
    tokens = arrays["tokens"]
    B, N, _ = tokens.shape
    x, y = (tokens @ arrays["wr.weight"].T).view(B, N, 2, heads, width).permute(2, 0, 3, 1, 4)
    matrix = cross_covariance(x, y, center=center)
    for case in index["cases"]:
        options = (case["alpha"], case["svNum"], case["iterNum"])
        fast = singular_value_power_norm(matrix, arrays["norm.weight"], *options)
        golden = arrays[f"{case['prefix']}.out"].view_as(matrix)
        residual, last = _deflate(matrix, arrays["norm.weight"], case["svNum"], case["iterNum"])
        factor = last ** (1 - case["alpha"])
        bound = 1e-5 / factor * residual.flatten(-2).norm(dim=-1) / factor  # eps / s^(1-a), times the residual term
        assert ((fast - golden).flatten(-2).norm(dim=-1) <= bound).all()
        assert (fast - golden).abs().max() > 1e-9  # the two forms do differ


@pytest.mark.parametrize("name", NORM_FILES)
def test_mgcrp_with_each_normalisation(name):
    arrays, index = golden_arrays(f"head/{name}"), golden_index(name)
    for case in index["cases"]:
        kind, prefix = case["norm"], case["prefix"]
        config = HeadConfig(
            index["dim"],
            2,
            k_dim=index["wr_dim"],
            normalization=PUBLISHED_NORMALIZATIONS[kind],
            residual_eps=1e-5,
        )
        norm = create_normalization(config)
        state = {key.split(".")[-1]: value for key, value in arrays.items() if key.startswith(f"{kind}:norm.")}
        if kind == "svPN":
            state = {"start_vector": state["weight"]}
        norm.load_state_dict(state)
        bias = arrays["wr.bias"] if case["qkv_bias"] else None
        pool = _pool(arrays, index, CENTERS[index["center"]], norm, arrays["wr.weight"], bias)
        tokens = arrays["tokens"].clone().requires_grad_()
        out = pool(tokens)
        (out * arrays["R"]).sum().backward()
        assert_same(out, arrays[f"{prefix}.out"])
        assert_same(tokens.grad, arrays[f"{prefix}.grad_tokens"])
        assert_same(pool.proj.weight.grad, arrays[f"{prefix}.grad_wr_weight"])


def test_svpn():
    arrays = golden_arrays("head/svpn.npz")
    for case in golden_index("svpn.npz")["cases"]:
        prefix = case["prefix"]
        x = arrays[f"{prefix}.x"].clone().requires_grad_()
        start = arrays.get(f"{prefix}.start", torch.ones(case["cols"])).clone().requires_grad_()
        out = singular_value_power_norm(x, start, case["alpha"], case["svNum"], case["iterNum"], residual_eps=1e-5)
        if case["vec"] == "triu":
            out = out[:, *torch.triu_indices(case["rows"], case["cols"])]
        (out.reshape(arrays[f"{prefix}.R"].shape) * arrays[f"{prefix}.R"]).sum().backward()
        assert_same(out, arrays[f"{prefix}.out"])
        assert_same(x.grad, arrays[f"{prefix}.grad_x"])
        if f"{prefix}.grad_start" in arrays and arrays[f"{prefix}.grad_start"].abs().max() > 1e-12:
            assert_same(start.grad, arrays[f"{prefix}.grad_start"], rtol=1e-8 if case["svNum"] is None else 1e-10)


def test_covariance():
    arrays = golden_arrays("head/covariance.npz")
    x, y = arrays["x"].unsqueeze(1), arrays["y"].unsqueeze(1)
    tokens_per_channel = x.shape[2] / x.shape[3]
    for name, center in CENTERS.items():
        assert_same(cross_covariance(x, y, center=center), arrays[f"cross_{name}"])
        assert_same(cross_covariance(x, x, center=center) * tokens_per_channel, arrays[f"self_{name}"])
    assert_same(cross_covariance(x, y, center="token"), arrays["conv_cross"])


def test_matrix_square_root():
    arrays = golden_arrays("head/mpn.npz")
    for case in golden_index("mpn.npz")["cases"]:
        prefix, side = case["prefix"], f"d{case['dim']}"
        rows, columns = torch.triu_indices(case["dim"], case["dim"])
        spd = arrays[f"{side}.spd"].clone().requires_grad_()
        root = matrix_square_root(spd, case["iterNum"])
        assert_same(root, arrays[f"{prefix}.sqrt_mat"])
        assert_same(root[:, rows, columns], arrays[f"{prefix}.out_vec"])
        for kind, value in (("mat", root), ("vec", root[:, rows, columns])):
            (grad,) = torch.autograd.grad((value * arrays[f"{side}.R_{kind}"]).sum(), spd, retain_graph=True)
            assert_same(grad, arrays[f"{prefix}.autograd_grad_from_{kind}"])
            published = arrays[f"{prefix}.published_grad_from_{kind}"]
            assert_same(grad + grad.mT, published + published.mT)


def _classifier_state(keys, salt):
    """The published parameters of a case under this package's names."""
    names = {
        "representation.wr": "pool.proj",
        "representation.norm": "pool.norm",
        "dr": "pool.proj",
        "dim": "dense",
        "visual_fc": "word_fc",
        "cls_fc": "cls_fc",
    }
    state = {}
    for key, value in reference_fill().state_from_shapes(keys, salt=salt, dtype=torch.float64).items():
        module, _, last = key.rpartition(".")
        last = "start_vector" if module.endswith("norm") and f"{module}.bias" not in keys and last == "weight" else last
        state[f"{names[module]}.{last}"] = value
    if "dense.weight" in state:  # the dense layer's classifier
        state = {key.replace("cls_fc", "out_proj"): value for key, value in state.items()}
    return state


def _published_head(index, case):
    normalization = {
        "type": case["norm"],
        "alpha": 0.5,
        "iterNum": 1,
        "svNum": 1,
        "regular": None,
        "input_dim": 5,
    }
    args = {"dim": index["input_dim"], "num_heads": index["num_heads"]}
    if case["re_type"] == "MGCrP":
        args |= {"wr_dim": index["wr_dim"], "normalization": normalization}
    if case["re_type"] == "GCP":
        args |= {"wr_dim": index["cov_dim"]}
    config = {"type": case["re_type"], "fusion_type": case["fusion_type"], "args": args}
    extra = {"center": CENTERS[case["center"]], "residual_eps": 1e-5, "gcp_iters": 3}
    build = OnlyVisualTokensClassifier if case["prefix"].startswith("onlyvis") else Classifier
    return build({**config, **extra}, num_classes=index["num_classes"])


@pytest.mark.parametrize("name", CLASSIFIER_FILES)
def test_classifier(name):
    arrays, index = golden_arrays(f"head/{name}"), golden_index(name)
    compared = 0
    for case in index["cases"]:
        prefix = case["prefix"]
        if prefix == "MGCrP_unknownfusion":
            continue
        head = _published_head(index, case)
        state = _classifier_state(case["keys"], index["salt"])
        unused = {key.replace("visual_fc", "word_fc") for key in case["unused_parameters"]}
        head.load_state_dict({key: value for key, value in state.items() if key not in unused})
        tokens = arrays["tokens"].clone().requires_grad_()
        if case["re_type"] == "GCP":  # published / d, here / n: the square root takes sqrt(n / d)
            pooled = tokens.shape[1] - (case["fusion_type"] != "aggre_all")
            factor = (pooled / index["cov_dim"]) ** 0.5
            head.pool.register_forward_hook(lambda module, args, out, factor=factor: out * factor)
        outputs = head(tokens)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        assert len(outputs) == len(case["outputs"])
        for i, output in enumerate(outputs):
            assert_same(output, arrays[f"{prefix}.out{i}"])
        sum((output * arrays[f"{prefix}.R{i}"]).sum() for i, output in enumerate(outputs)).backward()
        assert_same(tokens.grad, arrays[f"{prefix}.grad_tokens"])
        assert all(parameter.grad is not None for parameter in head.parameters())
        compared += 1
    assert compared >= 10


def _sovit_head(index, arrays):
    """The So-ViT head: svPN acts on Cov^T, so the two projections change places and the flattened order with them."""
    p, q = index["p"], index["q"]
    config = HeadConfig(
        index["input_dim"],
        index["num_classes"],
        num_heads=1,
        q_dim=q,
        k_dim=p,
        projection="batch_norm_relu",
        alpha=index["alpha"],
        num_iters=index["iterNum"],
        num_singular_values=index["svNum"],
        residual_eps=1e-5,
    )
    head = ClassificationHead(config)
    blocks = [f"param:representation.conv_dr_block.{i}" for i in (1, 0)]  # our q-part is the published second block
    state = {"pool.proj.linear.weight": torch.cat([arrays[f"{block}.0.weight"][:, :, 0, 0] for block in blocks])}
    for last in ("weight", "bias", "running_mean", "running_var"):
        state[f"pool.proj.bn.{last}"] = torch.cat([arrays[f"{block}.1.{last}"] for block in blocks])
    state["pool.proj.bn.num_batches_tracked"] = torch.tensor(0)
    state["pool.norm.start_vector"] = arrays["param:normalization.weight"]
    weight = arrays["param:visual_fc.weight"]
    state["word_fc.weight"] = weight.view(-1, p, q).transpose(1, 2).flatten(1)
    state["word_fc.bias"] = arrays["param:visual_fc.bias"]
    state |= {f"cls_fc.{last}": arrays[f"param:cls_fc.{last}"] for last in ("weight", "bias")}
    head.load_state_dict(state)
    return head


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", SOVIT_FILES)
def test_sovit_head(name, mode):
    arrays, index = golden_arrays(f"head/{name}"), golden_index(name)
    q = index["q"]
    head = _sovit_head(index, arrays).train(mode == "train")
    tokens = arrays["tokens"].clone().requires_grad_()
    stages = {}
    head.pool.norm.register_forward_hook(lambda module, args, out: stages.update(cov=args[0], norm=out))
    logits = head(tokens)
    (logits * arrays["R_logits"]).sum().backward()
    assert_same(logits, arrays[f"{mode}.logits"])
    assert_same(stages["cov"].mT, arrays[f"{mode}.cov"])
    assert_same(stages["norm"].mT, arrays[f"{mode}.norm"])
    assert_same(tokens.grad, arrays[f"{mode}.grad_tokens"])
    linear, bn = head.pool.proj.linear.weight.grad, head.pool.proj.bn
    for block, rows in ((0, slice(q, None)), (1, slice(0, q))):
        assert_same(linear[rows], arrays[f"{mode}.grad_conv{block}"])
        assert_same(bn.weight.grad[rows], arrays[f"{mode}.grad_bn{block}_weight"])
        assert_same(bn.bias.grad[rows], arrays[f"{mode}.grad_bn{block}_bias"])
        if mode == "train":
            prefix = f"after_one_train_step:representation.conv_dr_block.{block}.1"
            assert_same(bn.running_mean[rows], arrays[f"{prefix}.running_mean"])
            assert_same(bn.running_var[rows], arrays[f"{prefix}.running_var"])
    cov = arrays[f"{mode}.cov"].clone().requires_grad_()
    (head.pool.norm(cov.mT).mT.reshape(arrays["R_norm"].shape) * arrays["R_norm"]).sum().backward()
    assert_same(cov.grad, arrays[f"{mode}.grad_cov_of_norm"])
    assert_same(head.pool.norm.start_vector.grad, arrays[f"{mode}.grad_start_vector"])  # the sum of both backwards


def test_sovit_head_other():
    """The older head's symmetric covariance, as svPN (both projections alike) and as matrix square root."""
    arrays, index = golden_arrays("head/sovit_head_other.npz"), golden_index("sovit_head_other.npz")
    for case in index["cases"]:
        prefix = case["prefix"]
        state = reference_fill().state_from_shapes(case["keys"], salt=index["salt"], dtype=torch.float64)
        block = "representation.conv_dr_block"
        new = {f"cls_fc.{last}": state[f"cls_fc.{last}"] for last in ("weight", "bias")}
        if "visual_fc.weight" in state:
            new |= {f"word_fc.{last}": state[f"visual_fc.{last}"] for last in ("weight", "bias")}
        options = {"None": {"fusion": "cls"}, "first-order": {"pooling": "gap"}}.get(prefix)
        if options is None:
            copies = 2 if prefix.startswith("svPN") else 1
            new["pool.proj.linear.weight"] = state[f"{block}.0.weight"][:, :, 0, 0].repeat(copies, 1)
            for last in ("weight", "bias", "running_mean", "running_var"):
                new[f"pool.proj.bn.{last}"] = state[f"{block}.1.{last}"].repeat(copies)
            new["pool.proj.bn.num_batches_tracked"] = torch.tensor(0)
            options = {"q_dim": 6, "num_heads": 1, "projection": "batch_norm_relu", "residual_eps": 1e-5}
            if copies == 2:  # svPN acts on the transposed matrix, as in test_sovit_head
                new["pool.norm.start_vector"] = state["normalization.weight"]
                new["word_fc.weight"] = new["word_fc.weight"].view(-1, 6, 6).transpose(1, 2).flatten(1)
            else:
                options |= {"pooling": "gcp", "gcp_iters": 3}
        head = ClassificationHead(HeadConfig(24, 5, **options))
        head.load_state_dict(new)
        head.train(prefix.endswith("train"))
        assert_same(head(arrays["tokens"]), arrays[f"{prefix}.logits"])
