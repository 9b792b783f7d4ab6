from functools import cache

import pytest
import timm
import torch

from sot_base.errors import UsageError
from tests.vision.golden import golden_model
from vision.models.sizes import PUBLISHED_SIZES
from vision.summary import count_parts, main

EXACT = ("hvt", "scale_hvt", "lvvit")


@cache
def whole(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    return count_parts(model, depth=0)[0]


@pytest.mark.parametrize(
    "name", ["SoT_Tiny", "SoT_Small", "SoT_Base", "So_vit_7", "So_vit_10", "So_vit_14", "So_vit_19"]
)
def test_macs_are_those_of_the_published_code(name):
    golden, found = golden_model(name), whole(name.lower())
    by_operator = golden["macs_fvcore_by_operator"]
    published_head = by_operator["bmm"]  # svPN with explicit rank-one matrices, which the fast path does without
    assert found.macs == pytest.approx(golden["macs_conv_linear_matmul"], abs=published_head)
    assert found.linear_macs == pytest.approx(by_operator["conv"] + by_operator["linear"], abs=1e5)
    assert round(found.macs / 1e9, 3) == PUBLISHED_SIZES[name.lower()].code_gmacs
    assert (found.params, found.trainable) == (golden["params_total"], golden["params_trainable"])


@pytest.mark.parametrize("name", [n for n, size in PUBLISHED_SIZES.items() if size.gmacs and not n.startswith(EXACT)])
def test_macs_are_near_the_published_ones(name):
    size, found = PUBLISHED_SIZES[name], whole(name)
    assert found.linear_macs / 1e9 == pytest.approx(size.gmacs, rel=0.03)
    if size.code_params is None:  # the published code of the others differs from its own table
        assert found.params / 1e6 == pytest.approx(size.params, rel=0.03)


@pytest.mark.parametrize("name", [name for name in PUBLISHED_SIZES if name.startswith(EXACT)])
def test_sizes_are_the_published_ones(name):
    size, found = PUBLISHED_SIZES[name], whole(name)
    if size.params is not None:
        assert found.params / 1e6 == pytest.approx(size.params, rel=0.005)
    if size.gmacs is not None:  # all products counted
        assert found.macs / 1e9 == pytest.approx(size.gmacs, rel=0.005)
    if size.code_gmacs is not None:
        assert round(found.macs / 1e9, 3) == size.code_gmacs
    if size.code_params is not None:
        assert round(found.params / 1e6, 3) == size.code_params[0]


def test_counts_of_a_known_layer():
    class Net(torch.nn.Module):
        num_classes, pretrained_cfg = 4, {"input_size": (3, 8, 8)}

        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 5, 3, padding=1)
            self.fc = torch.nn.Linear(5, 4).requires_grad_(False)

        def forward(self, x):
            x = self.conv(x).flatten(2).transpose(1, 2)  # (1, 64, 5)
            return self.fc((x @ x.mT @ x).mean(1))

    parts = {part.name: part for part in count_parts(Net())}
    assert parts["conv"].macs == 64 * 5 * 27
    assert parts["conv"].activations == 64 * 5
    assert parts["fc"].macs == parts["fc"].linear_macs == 20
    assert (parts[""].params, parts[""].trainable) == (5 * 28 + 24, 5 * 28)
    assert parts[""].macs - parts[""].linear_macs == 2 * 64 * 64 * 5
    assert parts[""].activations == 64 * 5 + 64 * 64 + 64 * 5 + 4


def test_parts_add_up():
    parts = {part.name: part for part in count_parts(timm.create_model("sot_micro"), depth=1)}
    children = [part for name, part in parts.items() if name]
    whole_model = parts[""]
    assert {"patch_embed", "blocks", "norm", "head"} == {part.name for part in children}
    assert sum(part.macs for part in children) == whole_model.macs
    tokens = 96 * 66  # class token and positions belong to no part
    assert sum(part.params for part in children) == whole_model.params - tokens
    deep = {part.name: part for part in count_parts(timm.create_model("sot_micro"))}
    assert deep["head"].macs == deep["head.pool"].macs + deep["head.cls_fc"].macs + deep["head.word_fc"].macs
    assert deep["head.pool"].macs > 0


def test_image_size_counts():
    small, large = (count_parts(timm.create_model("resnet10t"), (size, size), 0)[0] for size in (64, 128))
    assert 3.8 < large.macs / small.macs < 4.0
    assert large.params == small.params


def test_command_line(capsys):
    assert main(["sot_micro", "--depth", "1", "--num-classes", "7", "--mgcrp-q", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["part", "params", "trainable", "MACs", "conv", "+", "linear", "activations"]
    assert [line.split()[0] for line in lines[1:]] == ["(all)", "patch_embed", "blocks", "norm", "head"]
    assert main(["resnet10t", "--img-size", "64", "--depth", "1", "--head-pooling", "gap"]) == 0
    assert "head" in capsys.readouterr().out


def test_wrong_command_lines():
    with pytest.raises(UsageError, match=r"unknown model resnet5: .* did you mean"):
        main(["resnet5"])
    with pytest.raises(UsageError, match="unknown option --dept; did you mean --depth"):
        main(["sot_micro", "--dept", "1"])
