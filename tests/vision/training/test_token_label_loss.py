"""The loss of token labeling, against the published numbers and by its definition."""

import json

import pytest
import timm
import torch

import vision.models  # noqa: F401
from sot_core import HeadConfig
from tests.support import golden_arrays, golden_file
from vision.models.dense_head import DenseHead
from vision.models.lvvit import DenseOutput
from vision.token_label.targets import TokenLabelTarget
from vision.training.token_label_loss import TokenLabelLoss, soft_cross_entropy

CASES = {
    case["prefix"]: case
    for case in json.loads(golden_file("loss/index.json").read_text())["files"]["losses.npz"]["cases"]
}
UNMIXED = (0, 0, 0, 0)


def published_target(columns):
    """The target of a published (B, K, 2 + N) tensor; one of (B, K) holds for the image and all patches."""
    if columns.ndim == 2:
        return columns
    return TokenLabelTarget(columns[..., 0], columns[..., 1], columns[..., 2:].transpose(1, 2))


def random_target(batch=3, tokens=6, classes=4):
    parts = torch.rand(batch, 2 + tokens, classes).softmax(-1)
    return TokenLabelTarget(parts[:, 0], parts[:, 1], parts[:, 2:])


def random_output(batch=3, tokens=6, classes=4, box=UNMIXED):
    return DenseOutput(torch.randn(batch, classes), torch.randn(batch, tokens, classes), box)


class TestPublishedNumbers:
    @pytest.mark.parametrize("name", [name for name in CASES if name.startswith("TLCE")])
    def test_token_label_cross_entropy(self, name):
        case, arrays = CASES[name], golden_arrays("loss/losses.npz")
        logits, dense = (arrays[key].clone().requires_grad_() for key in ("x_cls", "x_aux"))
        loss = TokenLabelLoss(case["dense_weight"], case["cls_weight"], case["ground_truth"])(
            DenseOutput(logits, dense, tuple(case["bbox"])), published_target(arrays[case["target"]])
        )
        loss.backward()
        torch.testing.assert_close(loss.detach(), arrays[f"{name}.loss"], rtol=1e-10, atol=0)
        for tensor, key in ((logits, "grad_cls"), (dense, "grad_aux")):
            found = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            torch.testing.assert_close(found, arrays[f"{name}.{key}"], rtol=1e-10, atol=1e-16)

    @pytest.mark.parametrize("name", ["STCE", "STCE_repeat", "TLSTCE_3d", "TLSTCE_2d"])
    def test_logits_alone(self, name):
        case, arrays = CASES[name], golden_arrays("loss/losses.npz")
        logits = arrays[case["input"]].clone().requires_grad_()
        target = arrays["target_3d" if "target_3d" in case["target"] else "target_2d"]
        repeats = len(logits) // len(target)
        loss = TokenLabelLoss()(logits, published_target(target.repeat(repeats, *[1] * (target.ndim - 1))))
        loss.backward()
        torch.testing.assert_close(loss.detach(), arrays[f"{name}.loss"], rtol=1e-10, atol=0)
        torch.testing.assert_close(logits.grad, arrays[f"{name}.grad"], rtol=1e-10, atol=1e-16)


class TestDefinition:
    def test_one_class_index_an_image_holds_for_every_patch(self):
        output, classes = random_output(), torch.tensor([1, 0, 3])
        by_hand = torch.nn.functional.cross_entropy(output.logits, classes)
        by_hand += 0.3 * torch.nn.functional.cross_entropy(output.dense.flatten(0, 1), classes.repeat_interleave(6))
        torch.testing.assert_close(TokenLabelLoss(0.3)(output, classes), by_hand)

    def test_weights_that_are_zero_leave_their_part_out(self):
        output, target = random_output(), random_target()
        bad = output._replace(dense=torch.full_like(output.dense, float("nan")))
        torch.testing.assert_close(TokenLabelLoss(0.0)(bad, target), soft_cross_entropy(output.logits, target.label))
        dense = soft_cross_entropy(output.dense, target.tokens)
        torch.testing.assert_close(TokenLabelLoss(1.0, 0.0)(output, target), dense)

    def test_parts_of_the_class_logits_count_one_loss_each(self):
        output, other, target = random_output(), torch.randn(3, 4), random_target()
        both = TokenLabelLoss(0.0)(output._replace(logits=(output.logits, other)), target)
        parts = (output.logits, other)
        torch.testing.assert_close(both, sum(soft_cross_entropy(part, target.label) for part in parts))
        torch.testing.assert_close(TokenLabelLoss()(parts, target), both)

    @pytest.mark.parametrize("box", [(0, 0, 2, 3), (0, 1, 2, 2), UNMIXED])
    def test_a_box_mixes_the_image_label_by_its_area(self, box):
        output, target = random_output(box=box), random_target()
        area = (box[2] - box[0]) * (box[3] - box[1]) / 6
        label = target.label.lerp(target.label.flip(0), area)
        wanted = soft_cross_entropy(output.logits, label) + 0.5 * soft_cross_entropy(output.dense, target.tokens)
        torch.testing.assert_close(TokenLabelLoss()(output, target), wanted)

    @pytest.mark.parametrize("tokens, classes", [(5, 4), (6, 3)])
    def test_another_grid_or_class_count_is_named(self, tokens, classes):
        with pytest.raises(ValueError, match=r"labels of (5 patches for a model of 6|shape \(3, 3\) for logits)"):
            TokenLabelLoss()(random_output(), random_target(tokens=tokens, classes=classes))

    @pytest.mark.parametrize("weights", [(-1, 1), (1, -0.5)])
    def test_negative_weights_are_named(self, weights):
        with pytest.raises(ValueError, match="must not be negative"):
            TokenLabelLoss(*weights)


@pytest.mark.parametrize("name", ["lvvit_s", "sot_micro", "deit_tiny_sot"])
def test_every_parameter_of_a_dense_head_learns(name):
    """Tokens of any backbone, through a head with a classifier of patches."""
    small = {"embed_dim": 24, "depth": 1, "num_heads": 2, **({"stem_width": 8} if name == "lvvit_s" else {})}
    model = timm.create_model(name, num_classes=4, img_size=32, **small)
    if not isinstance(model.head, DenseHead):
        model.head = DenseHead(HeadConfig(24, 4, num_heads=2, q_dim=3))
    tokens = model.forward_features(torch.randn(3, 3, 32, 32))
    count = tokens.shape[1] - 1
    output = DenseOutput(model.head.class_logits(tokens), model.head.dense_logits(tokens), (0, 0, 1, 1))
    TokenLabelLoss(ground_truth=True)(output, random_target(tokens=count)).backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
