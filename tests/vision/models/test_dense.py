"""Models that classify every patch for token labeling: LV-ViT, SoT and timm's vision transformers."""

import copy
import io
import logging
import pickle

import pytest
import timm
import torch
from timm.utils import ModelEmaV3
from torch import nn
from torch._dynamo.testing import CompileCounter

import vision
from sot_base.errors import UsageError
from sot_core import ClassificationHead
from vision import validate
from vision.models import dense_mixin, lvvit
from vision.models.build import build_model, saved_recipe
from vision.models.dense_head import DenseHead
from vision.models.dense_mixin import DenseOutput
from vision.models.mix_token import draw_box, swap_box
from vision.token_label.targets import TokenLabelTarget
from vision.training.task import head_modules
from vision.training.token_label_loss import TokenLabelLoss

VIT = {"embed_dim": 24, "depth": 2, "num_heads": 2}
TIMM_VIT = {**VIT, "init_values": 1.0}  # LayerScale as small as timm's would hide what blocks do
EMBED = {"token_dim": 8, "dense_layers": 1}
HEAD = {"num_heads": 2, "q_dim": 3}
OURS = {
    "lvvit_s": {**VIT, "stem_width": 8},
    "sot_tiny": {**VIT, "token_embed": EMBED},
    "so_vit_7": {**VIT, "token_embed": {"type": "ResNet", "token_dim": 4}},
    "deit_tiny_sot": {**VIT, "token_embed": EMBED},
}
TIMMS = {  # name: (class token, its prefix tokens)
    "deit_tiny_patch16_224": (True, 1),
    "deit_tiny_distilled_patch16_224": (True, 2),
    "deit3_small_patch16_224": (True, 1),
    "vit_medium_patch16_reg4_gap_256": (False, 4),
}
PREFIX = {**dict.fromkeys(OURS, 1), **{name: count for name, (_, count) in TIMMS.items()}}
DENSE = {"return_dense": True, "mix_token": True}
BOX = (1, 0, 3, 4)
SIZE, GRID = (64, 96), (4, 6)


def recipe(name, classes=5, head=HEAD, **kwargs):
    own = {} if name == "lvvit_s" else head  # LV-ViT keeps its published head
    return {
        "name": name,
        "num_classes": classes,
        "kwargs": {"img_size": SIZE, **OURS.get(name, TIMM_VIT), **kwargs},
        "head": dict(own),
    }


def build(name, classes=5, head=HEAD, **kwargs):
    return build_model(recipe(name, classes, head, **{**DENSE, **kwargs}))


def image(batch=3, size=SIZE):
    return torch.randn(batch, 3, *size)


def random_target(batch=3, tokens=24, classes=5):
    parts = torch.rand(batch, 2 + tokens, classes).softmax(-1)
    return TokenLabelTarget(parts[:, 0], parts[:, 1], parts[:, 2:])


def is_ours(name):
    return name in OURS


@pytest.mark.parametrize("name", [*OURS, *TIMMS])
class TestEveryModel:
    def test_training_gives_patches_and_the_box(self, name):
        model = build(name, mix_alpha=0.5).train()
        assert (model.return_dense, model.mix_token, model.mix_alpha) == (True, True, 0.5)
        x = image()
        torch.manual_seed(3)
        output = model(x)
        assert isinstance(output, DenseOutput)
        assert (output.logits.shape, output.dense.shape) == ((3, 5), (3, 24, 5))
        torch.manual_seed(3)
        assert output.box == draw_box(GRID, 0.5)
        assert model.dense_grid() == model.dense_grid(SIZE) == GRID
        assert model.dense_grid(224) == (14, 14)

    def test_everything_learns(self, name):
        model = build(name, drop_path_rate=0.0).train()
        TokenLabelLoss(ground_truth=True)(model(image()), random_target()).backward()
        without = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
        assert without == []

    def test_evaluation_adds_half_the_best_patch(self, name):
        model, x = build(name).eval(), image()
        tokens = model.forward_features(x)
        patches = tokens[:, PREFIX[name] :]
        patches = patches if is_ours(name) else model.fc_norm(patches)
        best = model.head.dense_fc(patches).amax(1)
        alone = ClassificationHead(model.head.config).eval()
        alone.load_state_dict({k: v for k, v in model.head.state_dict().items() if "dense_fc" not in k})
        torch.testing.assert_close(model(x), alone(model.word_tokens(tokens)) + 0.5 * best)
        unmixed = model.forward_dense(x)
        assert unmixed.box == (0, 0, 0, 0)
        torch.testing.assert_close(unmixed.logits + 0.5 * unmixed.dense.amax(1), model(x))

    def test_mixing_is_a_swap_of_patch_embeddings(self, name):
        model, x = build(name).eval(), image()
        output = model.forward_dense(x, BOX)
        hook = model.patch_embed.register_forward_hook(lambda module, args, tokens: swap_box(tokens, GRID, BOX))
        tokens = model.word_tokens(model.forward_features(x))
        hook.remove()
        dense = model.head.dense_logits(tokens).unflatten(1, GRID)
        torch.testing.assert_close(output.logits, model.head.class_logits(tokens))
        found = output.dense.unflatten(1, GRID)
        torch.testing.assert_close(found[:, 1:3, :4], dense.flip(0)[:, 1:3, :4])
        torch.testing.assert_close(found[:, 1:3, 4:], dense[:, 1:3, 4:])
        torch.testing.assert_close(found[:, ::3], dense[:, ::3])
        plain = model.forward_dense(x)
        assert not torch.allclose(output.dense, plain.dense)  # the blocks have seen the other image
        model.blocks = nn.Sequential()
        torch.testing.assert_close(model.forward_dense(x, BOX).dense, model.forward_dense(x).dense)

    def test_state_dict_and_recipe(self, name):
        model, x = build(name).eval(), image()
        plain = build_model(recipe(name)).state_dict().keys()
        own = set() if name == "lvvit_s" else {"head.dense_fc.weight", "head.dense_fc.bias"}
        assert model.state_dict().keys() - plain == own
        saved = saved_recipe(recipe(name, **DENSE), model)
        assert all(saved["kwargs"][key] for key in DENSE)
        other = build_model(saved).eval()
        assert other.head.config == model.head.config
        other.load_state_dict(model.state_dict())
        torch.testing.assert_close(other(x), model(x), rtol=0, atol=0)
        assert isinstance(other.train()(x), DenseOutput)
        assert "head.dense_fc" in model.pretrained_cfg["classifier"]
        assert head_modules(model) == [model.head]

    def test_copies_and_pickles(self, name):
        model, x = build(name, mix_alpha=0.3).eval(), image()
        file = io.BytesIO(pickle.dumps(model))
        for other in (copy.deepcopy(model), pickle.load(file), ModelEmaV3(model).module):
            assert type(other) is type(model)
            assert (other.return_dense, other.mix_token, other.mix_alpha) == (True, True, 0.3)
            expected, found = model.forward_dense(x, BOX), other.eval().forward_dense(x, BOX)
            torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)
            torch.testing.assert_close(found.dense, expected.dense, rtol=0, atol=0)
            assert isinstance(other.train()(x), DenseOutput)

    def test_classifiers_are_renewed(self, name):
        model, x = build(name), image()
        model.reset_classifier(7)
        assert model.head.dense_fc.out_features == 7
        assert model.train()(x).dense.shape == (3, 24, 7)
        model.reset_classifier(0)
        assert model.train()(x).shape == (3, model.head_hidden_size)
        with pytest.raises(ValueError, match="the head classifies no patches: build the model with return_dense"):
            model.forward_dense(x)
        model.reset_classifier(3)
        assert model(x).dense.shape == (3, 24, 3)
        assert build(name, classes=0)(x).shape == (3, model.head_hidden_size)

    def test_gradient_checkpointing_and_other_sizes(self, name):
        model, x = build(name, dynamic_img_size=True, dynamic_img_pad=True).eval(), image(2, (70, 40))
        plain = model.forward_dense(x, (0, 0, 3, 2))
        assert plain.dense.shape == (2, 15, 5)
        assert model.dense_grid((70, 40)) == (5, 3)
        model.set_grad_checkpointing()
        again = model.forward_dense(x, (0, 0, 3, 2))
        torch.testing.assert_close(again.dense, plain.dense)
        again.dense.sum().backward()
        assert model.blocks[0].mlp.fc1.weight.grad.any()

    def test_masks_reach_the_blocks(self, name):
        model, x = build(name).eval(), image()
        mask = torch.ones(PREFIX[name] + 24, PREFIX[name] + 24, dtype=torch.bool).tril()
        masked = model.forward_dense(x, attn_mask=mask)
        torch.testing.assert_close(masked.logits + 0.5 * masked.dense.amax(1), model(x, attn_mask=mask))
        assert not torch.allclose(masked.dense, model.forward_dense(x).dense)


@pytest.mark.parametrize("name", [name for name in TIMMS if "distilled" not in name])  # that one always has positions
def test_without_positions(name):
    model = build(name, pos_embed="none").train()
    assert model(image()).dense.shape == (3, 24, 5)


@pytest.mark.parametrize("name", TIMMS)
class TestTimmsTransformers:
    def test_mixing_is_a_swap_of_pixels(self, name):
        """Patches of timm's embedding do not overlap: the class logits are those of images with the box pasted in."""
        model, x = build(name).eval(), image()
        pasted = x.clone()
        pasted[:, :, 16:48, :64] = x.flip(0)[:, :, 16:48, :64]
        torch.testing.assert_close(model.forward_dense(x, BOX).logits, model.forward_dense(pasted).logits)

    def test_without_a_head_option_the_head_is_timms(self, name):
        model, x = build(name, head={}).eval(), image()
        with_cls, count = TIMMS[name]
        assert isinstance(model.head, DenseHead)
        config = model.head.config
        assert (config.fusion, config.has_cls_token) == (("cls", True) if with_cls else ("words", False))
        features = model.forward_features(x)
        pooled = features[:, 0] if with_cls else features[:, count:]
        layer = model.head.cls_fc if with_cls else model.head.word_fc
        logits = layer(model.fc_norm(pooled) if with_cls else model.fc_norm(pooled).mean(1))
        torch.testing.assert_close(model.forward_dense(x).logits, logits)

    def test_attached_without_dense_output(self, name):
        model = vision.attach_head(timm.create_model(name, num_classes=5, img_size=SIZE, **VIT), **HEAD)
        assert (model.return_dense, model.mix_token) == (False, False)
        assert type(model.head) is ClassificationHead
        assert model.train()(image()).shape == (3, 5)
        assert model.dense_grid() == GRID

    def test_attached_again(self, name):
        model = build(name)
        vision.attach_head(model, pooling="gap")
        assert isinstance(model.head, DenseHead)
        assert model.mix_token
        vision.attach_head(model, return_dense=False, **HEAD)
        assert (model.return_dense, model.mix_token, type(model.head)) == (False, False, ClassificationHead)
        assert model.train()(image()).shape == (3, 5)
        vision.attach_head(model, return_dense=True, mix_alpha=2.0, **HEAD)
        assert model.train()(image()).box == (0, 0, 0, 0)
        assert model.mix_alpha == 2.0


class TestOurModels:
    @pytest.mark.parametrize("name", ["sot_tiny", "so_vit_7", "deit_tiny_sot"])
    def test_unchanged_without_dense_output(self, name):
        model = build_model(recipe(name))
        assert model.return_dense is False
        assert type(model.head) is ClassificationHead
        assert model.pretrained_cfg["classifier"] == ("head.cls_fc", "head.word_fc")
        assert not [key for key in model.state_dict() if "dense_fc" in key]
        assert model.train()(image()).shape == (3, 5)
        with pytest.raises(ValueError, match="the head classifies no patches"):
            model.forward_dense(image())

    def test_turned_on_later(self):
        model = vision.attach_head(build_model(recipe("sot_tiny")), return_dense=True, **HEAD)
        assert isinstance(model.train()(image()), DenseOutput)

    def test_classifiers_with_a_loss_each(self):
        output = build("sot_tiny", head={**HEAD, "fusion": "sum_loss"}).train()(image())
        assert [part.shape for part in output.logits] == [(3, 5), (3, 5)]
        assert TokenLabelLoss()(output, random_target()).isfinite()

    def test_on_a_frozen_backbone(self):
        model = build("sot_tiny").eval()
        model.head.train()  # as --freeze-backbone leaves the modes
        boxes = {model(image()).box for _ in range(20)}
        assert len(boxes) > 3

    def test_bfloat16(self):
        with torch.autocast("cpu", torch.bfloat16):
            output = build("sot_tiny").train()(image())
        assert output.dense.dtype == torch.bfloat16

    def test_compiles(self):
        model = build("sot_tiny").eval()
        x = image()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))

    def test_boxes_are_drawn_outside_of_what_is_compiled(self):
        model, counter, x = build("sot_tiny").train(), CompileCounter(), image()
        compiled = torch.compile(model, backend=counter)
        assert len({compiled(x).box for _ in range(8)}) > 2
        assert counter.frame_count <= 2  # for one box, and for any


class TestCheckpoints:
    def test_of_a_model_that_classifies_patches_in_one_that_does_not(self, caplog):
        source, model = build("sot_tiny"), build_model(recipe("sot_tiny"))
        vision.load_checkpoint(model, source.state_dict())
        assert "head.dense_fc.weight, head.dense_fc.bias are not used (return_dense=True makes a model" in caplog.text
        assert torch.equal(model.head.cls_fc.weight, source.head.cls_fc.weight)
        with pytest.raises(UsageError, match=r"dense_fc\.weight does not fit.*create the model with return_dense=True"):
            vision.load_checkpoint(model, source.state_dict(), strict=True)

    def test_the_other_way_round(self, caplog):
        source, model = build_model(recipe("sot_tiny")), build("sot_tiny")
        vision.load_checkpoint(model, source.state_dict())
        assert "head.dense_fc.weight, head.dense_fc.bias are re-initialised" in caplog.text
        assert torch.equal(model.head.cls_fc.weight, source.head.cls_fc.weight)

    def test_published_weights_as_a_start(self, caplog):
        source = build_model(recipe("sot_tiny"))
        state = {}
        for name, tensor in source.state_dict().items():
            for ours, published in (
                ("patch_embed.proj.", "visual_tokens.tokens."),
                ("head.pool.proj.", "classifier.representation.wr."),
                ("head.pool.norm.start_vector", "classifier.representation.norm.weight"),
                ("head.word_fc.", "classifier.visual_fc."),
                ("head.cls_fc.", "classifier.cls_fc."),
            ):
                name = name.replace(ours, published, 1)
            state[name] = tensor
        model = vision.load_published_checkpoint(build("sot_tiny"), state, source_grid=GRID).eval()
        assert "head.dense_fc.weight, head.dense_fc.bias are re-initialised" in caplog.text
        assert isinstance(model.head, DenseHead)
        assert model.head.config.center == "sample"
        x = image()
        wanted = vision.load_published_checkpoint(source, state, source_grid=GRID).eval()(x)
        torch.testing.assert_close(model.forward_dense(x).logits, wanted)

    @pytest.mark.parametrize("classes", [5, 3])
    def test_timms_own_way_of_loading(self, tmp_path, caplog, classes):
        torch.save(build_model(recipe("sot_tiny")).state_dict(), tmp_path / "plain.pth")
        dense = build("sot_tiny")
        torch.save(dense.state_dict(), tmp_path / "dense.pth")
        for file, text in (
            ("plain.pth", "head.dense_fc.weight, head.dense_fc.bias are re-initialised"),
            ("dense.pth", ""),
        ):
            caplog.clear()
            with caplog.at_level(logging.WARNING, "vision.models.weights.load"):
                model = timm.create_model(
                    "sot_tiny",
                    pretrained=True,
                    num_classes=classes,
                    pretrained_cfg_overlay={"file": str(tmp_path / file), "num_classes": 5},
                    head_config=HEAD,
                    **recipe("sot_tiny", **DENSE)["kwargs"],
                )
            assert text in caplog.text
            assert model.train()(image()).dense.shape == (3, 24, classes)
        same = torch.equal(model.head.dense_fc.bias, dense.head.dense_fc.bias[:classes])
        assert same or classes == 3
        assert torch.equal(model.blocks[0].mlp.fc1.weight, dense.blocks[0].mlp.fc1.weight)

    def test_a_saved_run_is_validated(self, images, tmp_path, capsys):
        kwargs = {**OURS["sot_tiny"], **DENSE, "img_size": (32, 32)}
        whole = {"name": "sot_tiny", "num_classes": 3, "kwargs": kwargs, "head": dict(HEAD)}
        model = build_model(whole)
        data_config = {
            "input_size": (3, 32, 32),
            "interpolation": "bicubic",
            "mean": (0.5, 0.5, 0.5),
            "std": (0.5, 0.5, 0.5),
            "crop_pct": 1.0,
            "crop_mode": "center",
        }
        content = {
            "state_dict": model.state_dict(),
            "recipe": saved_recipe(whole, model),
            "data_config": data_config,
            "class_names": ["cat", "dog", "owl"],
            "options": {},
        }
        torch.save(content, tmp_path / "last.pth.tar")
        words = ["--checkpoint", str(tmp_path / "last.pth.tar"), "--device", "cpu", "-j", "0"]
        validate.main([str(images), *words])
        assert "6 images, raw weights" in capsys.readouterr().out
        validate.main([str(images), *words, "--img-size", "48"])
        assert "6 images, raw weights" in capsys.readouterr().out


class TestErrors:
    @pytest.mark.parametrize("name", ["sot_tiny", "lvvit_s", "deit_tiny_patch16_224"])
    @pytest.mark.parametrize("kwargs, message", [
        ({"return_dense": False}, "mix_token needs return_dense"),
        ({"patch_drop_rate": 0.1}, "return_dense needs every patch: patch_drop_rate must be 0"),
        ({"mix_alpha": -1.0}, r"mix_alpha must be positive, got -1\.0"),
    ])  # fmt: skip
    def test_options(self, name, kwargs, message):
        with pytest.raises(UsageError, match=f"cannot build the model {name}: {message}.*'mix_token': True"):
            build(name, **kwargs)

    @pytest.mark.parametrize("name", ["swin_tiny_sot", "hvt_tiny_1", "swin_tiny_patch4_window7_224", "resnet10t"])
    @pytest.mark.parametrize("head", [{}, HEAD])
    def test_models_without_a_token_for_every_patch(self, name, head):
        whole = {"name": name, "num_classes": 3, "kwargs": dict(DENSE), "head": head}
        with torch.device("meta"), pytest.raises(UsageError, match="has no token for every patch to the end"):
            build_model(whole)

    @pytest.mark.parametrize("name", ["swin_tiny_sot", "hvt_tiny_1", "resnet10t"])
    def test_they_can_be_told_not_to(self, name):
        whole = {"name": name, "num_classes": 3, "kwargs": {"return_dense": False, "mix_alpha": 1.0}, "head": {}}
        assert not hasattr(build_model(whole), "return_dense")

    def test_a_refused_model_is_untouched(self):
        model = timm.create_model("deit_tiny_patch16_224", img_size=32, patch_drop_rate=0.1, **VIT)
        with pytest.raises(ValueError, match="patch_drop_rate must be 0"):
            vision.attach_head(model, return_dense=True)
        assert type(model) is timm.models.VisionTransformer
        assert isinstance(model.head, nn.Linear)


def test_both_homes_name_the_same_output():
    assert lvvit.DenseOutput is dense_mixin.DenseOutput
