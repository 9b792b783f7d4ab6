"""What LV-ViT alone has: the classifier on every patch, MixToken, and its published checkpoints."""

import argparse

import pytest
import timm
import torch
from torch import nn

import vision
from sot_base.errors import UsageError
from sot_core import HeadConfig
from tests.vision.conftest import load
from tests.vision.golden import fill, golden_model, published_state
from vision import train, validate
from vision.models.dense_head import DenseHead
from vision.models.mix_token import box_around, draw_box, swap_box

TINY = {"embed_dim": 24, "depth": 2, "num_heads": 2, "stem_width": 8}


def build(num_classes=5, img_size=64, **kwargs):
    return timm.create_model("lvvit_s", num_classes=num_classes, img_size=img_size, **{**TINY, **kwargs}).eval()


def image(batch=2, size=64):
    return torch.randn(batch, 3, size, size)


def published_names(model):
    """The state of a model, or a state, under the names of the released files."""
    names = (("head.cls_fc.", "head."), ("head.dense_fc.", "aux_head."), ("patch_embed.proj.", "patch_embed."))
    state = {}
    for name, tensor in (model.state_dict() if isinstance(model, nn.Module) else model).items():
        for ours, published in names:
            name = name.replace(ours, published, 1)
        state[name] = tensor.clone()
    return state


class TestDenseHead:
    def test_half_the_best_word_is_added(self):
        model, x = build(), image()
        tokens = model.forward_features(x)
        dense = torch.stack([model.head.dense_fc(tokens[:, index]) for index in range(1, 17)])
        torch.testing.assert_close(model(x), model.head.cls_fc(tokens[:, 0]) + 0.5 * dense.amax(0))
        assert model.head.config.fusion == "cls"

    @pytest.mark.parametrize("fusion", ["cls", "sum_fc", "concat", "words"])
    def test_contributions_add_up(self, fusion):
        head = DenseHead(HeadConfig(24, 5, fusion=fusion, num_heads=2, q_dim=3)).eval()
        tokens, mask = torch.randn(3, 9, 24), torch.zeros(3, 9, dtype=torch.bool)
        mask[1, 5:], mask[2, 1:] = True, True
        for padding in (None, mask):
            torch.testing.assert_close(sum(head.contributions(tokens, padding)), head(tokens, padding))
            parts = head.token_contributions(tokens, padding)
            torch.testing.assert_close(parts.sum(dim=-1), head(tokens, padding))
            assert not parts.transpose(1, 2)[mask].any() if padding is not None else parts[..., 1:].any()
        alone = head(tokens[1:2, :5])
        torch.testing.assert_close(head(tokens, mask)[1:2], alone)

    def test_no_words_say_nothing(self):
        head = DenseHead(HeadConfig(24, 5, fusion="cls"))
        tokens, mask = torch.randn(2, 4, 24), torch.tensor([[False, True, True, True]] * 2)
        torch.testing.assert_close(head(tokens, mask), head.cls_fc(tokens[:, 0]))

    def test_every_parameter_of_the_published_form_learns(self):
        model = build().train()
        model(image()).square().sum().backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []

    def test_sum_loss_has_three_parts_in_training(self):
        model, x = build(head_fusion="sum_loss", mgcrp_heads=2, mgcrp_q=3), image()
        parts = model.train()(x)
        assert len(parts) == 3
        model.eval()
        model.head.train()
        tokens = model.forward_features(x)
        torch.testing.assert_close(sum(model.head(tokens)), model.head.eval()(tokens))

    def test_mgcrp_on_top(self):
        assert build(head_pooling="mgcrp").head.config.fusion == "sum_fc"
        assert build(mgcrp_heads=2).head.config.num_heads == 2
        assert build(head_fusion="words").head.config.fusion == "words"
        assert build(drop_rate=0.1).head.config.fusion == "cls"
        attached = vision.attach_head(build(), num_heads=2, q_dim=3)
        assert isinstance(attached.head, DenseHead)
        assert attached(image()).shape == (2, 5)


class TestMixToken:
    @pytest.mark.parametrize("name, side", [("lvvit_t", 14), ("lvvit_s_384", 24)])
    def test_boxes_of_the_published_draws(self, name, side):
        for case in golden_model(name)["train_mix_token"]:
            box = box_around((case["centre_row"], case["centre_col"]), (side, side), 1 - case["lam_drawn"])
            assert box == tuple(case["bbox_rows_cols"][key] for key in ("r0", "c0", "r1", "c1"))

    @pytest.mark.parametrize("alpha", [0.2, 1.0])
    def test_drawn_boxes_fit(self, alpha):
        torch.manual_seed(0)
        boxes = [draw_box((6, 10), alpha) for _ in range(300)]
        assert all(0 <= top <= bottom <= 6 and 0 <= left <= right <= 10 for top, left, bottom, right in boxes)
        assert len({(top, left) for top, left, _, _ in boxes}) > 20
        areas = torch.tensor([(bottom - top) * (right - left) / 60.0 for top, left, bottom, right in boxes])
        assert 0.15 < areas.mean() < 0.4
        torch.manual_seed(0)
        assert boxes[:5] == [draw_box((6, 10), alpha) for _ in range(5)]

    def test_swapping_twice_is_nothing(self):
        x = torch.arange(3 * 4 * 5.0).view(3, 20, 1)
        mixed = swap_box(x, (4, 5), (1, 2, 3, 4))
        assert torch.equal(mixed.view(3, 4, 5)[0, 1:3, 2:4], x.view(3, 4, 5)[2, 1:3, 2:4])
        assert torch.equal(mixed.view(3, 4, 5)[0, 0], x.view(3, 4, 5)[0, 0])
        assert (mixed != x).sum() == 8  # the middle image of three changes with itself
        assert torch.equal(swap_box(mixed, (4, 5), (1, 2, 3, 4)), x)
        assert torch.equal(swap_box(x.view(3, 4, 5, 1), (4, 5), (1, 2, 3, 4)), mixed.view(3, 4, 5, 1))

    @pytest.mark.parametrize("index", [0, 1])
    def test_training_equals_the_published_one(self, index):
        golden = golden_model("lvvit_t")
        case, wanted = golden["train_mix_token"][index], golden["train_mix_token"][index]["float64"]
        model = timm.create_model("lvvit_t", return_dense=True, mix_token=True).train()
        vision.load_published_checkpoint(model, published_state(golden), strict=True)
        box = tuple(case["bbox_rows_cols"][key] for key in ("r0", "c0", "r1", "c1"))
        with torch.no_grad():
            output = model.forward_dense(fill().image(golden["image_seed"], 224), box)
        assert (list(output.dense.shape), output.box) == (wanted["x_aux_shape"], box)
        for found, key in (
            (output.logits[:, :16], "x_cls_first16"),
            (output.logits.mean(1), "x_cls_mean"),
            (output.dense[:, wanted["x_aux_token_index"], :8], "x_aux_first8"),
            (output.dense[0].mean(-1), "x_aux_token_mean_sample0"),
        ):
            torch.testing.assert_close(found, torch.tensor(wanted[key]), rtol=0, atol=2e-5)

    def test_dense_output_in_training_alone(self):
        model, x = build(return_dense=True, mix_token=True, drop_path_rate=0.0), image(batch=3)
        assert model(x).shape == (3, 5)
        model.train()
        boxes = set()
        for seed in range(8):
            torch.manual_seed(seed)
            logits, dense, box = model(x)
            assert (logits.shape, dense.shape) == ((3, 5), (3, 16, 5))
            assert box == draw_again(seed)
            boxes.add(box)
            expected = model.forward_dense(x, box)
            torch.testing.assert_close((logits, dense), (expected.logits, expected.dense))
            if (box[2] - box[0]) * (box[3] - box[1]) in range(1, 16):
                assert not torch.allclose(logits, model.forward_dense(x, (0, 0, 0, 0)).logits)
        assert len(boxes) > 2
        (logits.square().sum() + dense.square().sum()).backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
        assert build(return_dense=True).train()(x).box == (0, 0, 0, 0)
        assert model.eval().forward_dense(x).box == (0, 0, 0, 0)
        unmixed = model.forward_dense(x)
        torch.testing.assert_close(unmixed.logits + 0.5 * unmixed.dense.amax(1), model(x))
        assert build(return_dense=True, num_classes=0).train()(x).shape == (3, 24)

    def test_dense_logits_stay_with_their_image(self):
        """With independent patches (no blocks) the logits of a patch are those without mixing."""
        model, x = build(return_dense=True), image()
        model.blocks = nn.Sequential()
        plain, mixed = model.forward_dense(x), model.forward_dense(x, (1, 0, 3, 4))
        inside = torch.zeros(4, 4, dtype=torch.bool)
        inside[1:3] = True
        torch.testing.assert_close(mixed.dense[:, ~inside.flatten()], plain.dense[:, ~inside.flatten()])
        torch.testing.assert_close(mixed.dense, plain.dense)

    def test_checkpointing_and_dynamic_sizes(self):
        model = build(return_dense=True, dynamic_img_size=True)
        output = model.forward_dense(image(size=96), (0, 0, 3, 2))
        assert output.dense.shape == (2, 36, 5)
        model.set_grad_checkpointing()
        assert model.train().forward_dense(image(size=64)).dense.shape == (2, 16, 5)


def draw_again(seed):
    torch.manual_seed(seed)
    return draw_box((4, 4))


@pytest.mark.parametrize("kwargs, message", [
    ({"mix_token": True}, "mix_token needs return_dense"),
    ({"return_dense": True, "patch_drop_rate": 0.1}, "return_dense needs every patch"),
    ({"return_dense": True, "mix_token": True, "mix_alpha": 0}, "mix_alpha must be positive, got 0"),
    ({"patch_size": 1}, "patch_size must be even, got 1"),
])  # fmt: skip
def test_wrong_options_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)


class TestPublishedCheckpoints:
    def test_timms_form(self, tmp_path, caplog):
        source, other, path = build(), build(), tmp_path / "lvvit_s-26M-224-83.3.pth.tar"
        content = {"arch": "lvvit_s", "epoch": 1, "args": argparse.Namespace(lr=1e-3)}
        torch.save({**content, "state_dict": published_names(other), "state_dict_ema": published_names(source)}, path)
        model, x = vision.load_published_checkpoint(build(), path, strict=True), image()
        torch.testing.assert_close(model(x), source(x), rtol=0, atol=0)
        assert caplog.text == ""
        assert vision.load_checkpoint(build(), path)(x).equal(model(x))

    def test_another_size_and_head(self, caplog):
        source = build()
        state = published_names(source)
        large = vision.load_published_checkpoint(build(img_size=96, num_classes=3, head_pooling="mgcrp"), state)
        assert torch.equal(large.pos_embed[:, 0], source.pos_embed[:, 0])
        assert large.pos_embed.shape == (1, 37, 24)
        assert torch.equal(large.patch_embed.proj.conv2.weight, source.patch_embed.proj.conv2.weight)
        for name in ("head.cls_fc.weight", "head.dense_fc.bias", "head.pool.proj.weight"):
            assert name in caplog.text
        same = vision.load_published_checkpoint(build(head_pooling="mgcrp"), state)
        assert torch.equal(same.pos_embed, source.pos_embed)
        assert torch.equal(same.head.cls_fc.weight, source.head.cls_fc.weight)
        assert torch.equal(same.head.dense_fc.weight, source.head.dense_fc.weight)

    def test_without_a_classifier_of_patches(self, caplog):
        state = {name: tensor for name, tensor in published_names(build()).items() if "aux_head" not in name}
        vision.load_published_checkpoint(build(), state)
        assert "head.dense_fc.weight, head.dense_fc.bias are re-initialised" in caplog.text
        with pytest.raises(UsageError, match=r"head\.dense_fc\.weight does not fit"):
            vision.load_published_checkpoint(build(), state, strict=True)

    def test_what_is_none_is_said(self):
        with pytest.raises(UsageError, match="not a published LV-ViT checkpoint: its tensors have other names"):
            vision.load_published_checkpoint(build(), build().state_dict())

    def test_start_training_from_one_and_validate_at_another_size(self, images, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        source = build(num_classes=4)
        torch.save({"arch": "lvvit_s", "state_dict": published_names(source)}, "lvvit.pth.tar")
        quick = ["--device", "cpu", "-j", "0"]
        model = ["--model", "lvvit_s", "--img-size", "32", "--model-kwargs", *(f"{k}={v}" for k, v in TINY.items())]
        words = ["--initial-checkpoint", "lvvit.pth.tar", "--freeze-backbone", "--max-steps", "1", "-b", "5"]
        train.main([str(images), *quick, *model, *words, "--output", "runs", "--experiment", "run"])
        state = load(tmp_path / "runs" / "run")["state_dict"]
        assert torch.equal(state["blocks.1.mlp.fc1.weight"], source.blocks[1].mlp.fc1.weight)
        assert state["head.dense_fc.weight"].shape == (3, 24)
        capsys.readouterr()
        validate.main([str(images), *quick, "--checkpoint", "runs/run/last.pth.tar", "--img-size", "48"])
        assert "6 images, raw weights" in capsys.readouterr().out
