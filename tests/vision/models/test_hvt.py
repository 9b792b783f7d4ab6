"""What HVT alone has: pooled sequences, their positions, scaling, JSON files, and the published command line."""

import argparse
import json

import pytest
import timm
import torch
from torch import nn

import sot_core
import vision
from sot_base.errors import UsageError
from tests.vision.conftest import load, make_split, rows
from tests.vision.data.test_sources import cifar_files
from tests.vision.golden import golden_model
from vision import train, validate
from vision.models.token_pool import resample_pooled_positions

TINY = {"patch_size": 8, "num_heads": 2, "head_dim": 6, "num_blocks": 4, "pool_block_width": 2}


def build(num_classes=5, img_size=64, **kwargs):
    return timm.create_model("hvt", num_classes=num_classes, img_size=img_size, **{**TINY, **kwargs}).eval()


def published_names(model):
    return {name.replace("head.word_fc.", "head."): t.clone() for name, t in model.state_dict().items()}


def tokens_left(**kwargs):
    return build(**kwargs).forward_features(torch.randn(1, 3, 64, 64)).shape[1]


class TestPooling:
    @pytest.mark.parametrize("stride, kernel, left", [(2, 3, 15), (1, 3, 60), (3, 3, 7), (2, 2, 16), (4, 1, 4)])
    def test_stride_and_window_are_honoured(self, stride, kernel, left):
        assert tokens_left(pool_stride=stride, pool_kernel_size=kernel) == left

    def test_width_of_a_stage(self):
        assert tokens_left(pool_block_width=0) == 64
        assert tokens_left(pool_block_width=12) == 31
        assert tokens_left(pool_block_width=1) == 3
        assert build(pool_block_width=3).pooled_blocks == [0, 3]

    def test_it_is_the_largest_of_a_window_and_new_positions(self):
        block = build().blocks[0]
        x = torch.randn(2, 64, 12)
        plain = nn.Module.__new__(timm.models.vision_transformer.Block)
        plain.__dict__ = {**block.__dict__}
        wanted = plain.forward(x).unfold(1, 3, 2).amax(-1) + block.pos_embed
        torch.testing.assert_close(block(x), wanted)

    def test_the_head_reads_their_average(self):
        model, x = build(), torch.randn(2, 3, 64, 64)
        tokens = model.forward_features(x)
        torch.testing.assert_close(model(x), model.head.word_fc(tokens.mean(1)))
        assert (model.head.config.pooling, model.head.config.fusion) == ("gap", "words")

    def test_a_head_attached_later(self):
        """It reads the pooled tokens, all of them and nothing else, and learns from them."""
        model, x = build(), torch.randn(2, 3, 64, 64)
        tokens = model.forward_features(x)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items() if not name.startswith("head.")}
        vision.attach_head(model, pooling="mgcrp", num_heads=2, q_dim=3)
        assert (model.head.config.pooling, model.head.config.fusion) == ("mgcrp", "words")
        after = model.state_dict()
        assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
        assert tokens.shape[1] == 15
        projected = model.head.pool.proj(tokens)  # 2 heads of q and k channels
        q, k = (part.unflatten(-1, (2, 3)).transpose(1, 2) for part in projected.split(6, dim=-1))
        matrix = model.head.pool.norm(sot_core.cross_covariance(q, k))
        torch.testing.assert_close(model(x), model.head.word_fc(matrix.flatten(1)))
        model.train()(x).sum().backward()
        assert all(block.pos_embed.grad is not None for block in (model.blocks[0], model.blocks[2]))

    def test_every_parameter_of_the_published_form_learns(self):
        model = build().train()
        model(torch.randn(2, 3, 64, 64)).square().sum().backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []

    def test_intermediates_that_are_no_grid_are_rows(self):
        model, x = build(), torch.randn(2, 3, 64, 64)
        maps = model.forward_intermediates(x, intermediates_only=True)
        assert [tuple(y.shape) for y in maps] == 2 * [(2, 12, 1, 31)] + 2 * [(2, 12, 1, 15)]
        final, tokens = model.forward_intermediates(x, output_fmt="NLC")
        torch.testing.assert_close(maps[-1].flatten(2).mT, tokens[-1])
        output = model.forward_intermediates(x, output_dict=True)
        torch.testing.assert_close(output["image_features"], final)
        assert output["image_intermediates"][0].shape == (2, 12, 1, 31)
        whole = build(pool_block_width=0).forward_intermediates(x, intermediates_only=True)
        assert whole[0].shape == (2, 12, 8, 8)
        assert model.feature_info[3]["reduction"] == 32
        features = build(features_only=True, out_indices=(1, 3))
        assert features.feature_info.channels() == [12, 12]
        assert [y.shape[-1] for y in features(x)] == [31, 15]
        first = build(features_only=True, out_indices=(0, 1)).model  # without the later blocks
        first.set_input_size((64, 32))
        assert first.no_weight_decay().isdisjoint({"blocks.2.pos_embed"})
        assert first.forward_features(torch.randn(1, 3, 64, 32)).shape == (1, 15, 12)
        with pytest.raises(ValueError, match="Unknown output_fmt 'NHWC'"):
            model.forward_intermediates(x, output_fmt="NHWC")

    def test_positions_have_no_weight_decay(self):
        assert {"pos_embed", "blocks.0.pos_embed", "blocks.2.pos_embed"} <= build().no_weight_decay()

    @pytest.mark.parametrize("kwargs, message", [
        ({"pool_kernel_size": 0}, "pool_kernel_size must be a positive integer, got 0"),
        ({"pool_stride": 0}, "pool_stride must be a positive integer, got 0"),
        ({"num_heads": "2"}, "num_heads must be a positive integer, got '2'"),
        ({"head_dim": 4.0}, "head_dim must be a positive integer, got 4.0"),
        ({"patch_size": 0}, "patch_size must be a positive integer, got 0"),
        ({"pool_block_width": -1}, "pool_block_width must be an integer of at least 0"),
        ({"pool_block_width": 1, "pool_stride": 5}, "pool_kernel_size 3 is wider than the sequence of 1 that is left"),
        ({"dynamic_img_size": True}, "dynamic_img_size is not for HVT"),
        ({"input_size": 64}, "input_size and img_size say the same"),
    ])  # fmt: skip
    def test_wrong_scalings_are_named(self, kwargs, message):
        with pytest.raises(ValueError, match=message):
            build(**kwargs)


class TestPositionsAtAnotherSize:
    def test_a_ramp_over_the_columns_stays_one(self):
        columns = torch.arange(16.0).repeat(16)
        pooled = nn.functional.avg_pool1d(columns[None], 3, 2).unsqueeze(-1)  # what lies in the middle of each window
        found = resample_pooled_positions(pooled, (16, 16), (16, 32), 3, 2, 1)
        assert found.shape == (1, 255, 1)
        middle = found[0, :, 0][torch.tensor([5 * 16 + column for column in range(3, 12)])]
        steps = middle.diff()
        torch.testing.assert_close(steps, torch.ones(8), atol=0.1, rtol=0)

    def test_rows_stay_rows(self):
        rows = torch.arange(8.0).repeat_interleave(8)
        pooled = nn.functional.avg_pool1d(rows[None], 3, 2).unsqueeze(-1)
        found = resample_pooled_positions(pooled, (8, 8), (16, 16), 3, 2, 1)[0, :, 0]
        assert found.shape == (127,)
        assert found.diff().min() > -0.2
        assert found[8 * 8 + 3] == pytest.approx(3.75, abs=0.3)  # row 8 of 16

    def test_models(self):
        source = build(pool_block_width=1)
        state = {name: tensor.clone() for name, tensor in source.state_dict().items()}
        same = vision.load_checkpoint(build(pool_block_width=1), state)
        assert all(torch.equal(tensor, state[name]) for name, tensor in same.state_dict().items())
        large = vision.load_checkpoint(build(img_size=(96, 64), pool_block_width=1), state)
        assert torch.equal(large.blocks[0].mlp.fc1.weight, source.blocks[0].mlp.fc1.weight)
        source.set_input_size((96, 64))
        for index in range(4):
            torch.testing.assert_close(source.blocks[index].pos_embed, large.blocks[index].pos_embed)
        assert source.blocks[3].pos_embed.requires_grad
        x = torch.randn(1, 3, 96, 64)
        torch.testing.assert_close(source(x), large(x))

    def test_another_pooling_does_not_fit(self):
        with pytest.raises(UsageError, match=r"does not fit HVT: blocks\.0\.pos_embed"):
            vision.load_checkpoint(build(), build(pool_stride=3).state_dict())
        small = build(img_size=24, pool_block_width=0).state_dict()
        with pytest.raises(UsageError, match=r"does not fit HVT: blocks\.0\.pos_embed missing"):
            vision.load_checkpoint(build(pool_block_width=1), small)


class TestPublishedCheckpoints:
    def test_deits_form(self, tmp_path):
        source, path = build(), tmp_path / "hvt.pth"
        torch.save({"model": published_names(source), "epoch": 299, "args": argparse.Namespace(lr=1e-3)}, path)
        model = vision.load_published_checkpoint(build(), path)
        x = torch.randn(2, 3, 64, 64)
        torch.testing.assert_close(model(x), source(x), rtol=0, atol=0)
        assert vision.load_checkpoint(build(), path)(x).equal(model(x))

    def test_mgcrp_on_top_and_another_size(self, caplog):
        source = build()
        model = build(num_classes=3, img_size=96, head_pooling="mgcrp", mgcrp_heads=2, mgcrp_q=3)
        vision.load_published_checkpoint(model, published_names(source))
        assert "head.pool.proj.weight" in caplog.text
        assert torch.equal(model.blocks[1].attn.qkv.weight, source.blocks[1].attn.qkv.weight)
        assert model(torch.randn(2, 3, 96, 96)).shape == (2, 3)

    def test_what_is_none_is_said(self):
        with pytest.raises(UsageError, match="not a published HVT checkpoint: its tensors have other names"):
            vision.load_published_checkpoint(build(), build().state_dict())
        with pytest.raises(UsageError, match=r"not a published HVT checkpoint: unknown tensor 'neck.weight'"):
            vision.load_published_checkpoint(build(), {**published_names(build()), "neck.weight": torch.ones(1)})


def test_files_are_json(tmp_path):
    path = tmp_path / "tabs.json"
    path.write_text(json.dumps({"num_heads": 3}, indent="\t"))
    assert train.parse_args(train.train_parser(), ["--config", str(path)]).model_kwargs == {"num_heads": 3}
    path.write_text('{"num_heads": 3,\n}')
    with pytest.raises(UsageError, match=r"not a JSON file .*line [12].*: .*tabs\.json; "):
        train.parse_args(train.train_parser(), ["--config", str(path)])
    path.write_text('{"num_head": 3}')
    with pytest.raises(UsageError, match=r"unknown key 'num_head': .*tabs\.json; did you mean 'num_heads'\?"):
        train.parse_args(train.train_parser(), ["--config", str(path)])


@pytest.fixture
def tiny_json(tmp_path):
    """A file of HVT's kind, of a model that is quick."""
    path = tmp_path / "hvt-mini.json"
    path.write_text(json.dumps({"input_size": 16, **TINY, "patch_size": 2}))
    return path


QUICK = ("--device", "cpu", "-j", "0", "--output", "runs")


class TestCommandLine:
    @pytest.mark.parametrize("name", ["hvt-ti-1", "scale-hvt-ti-4"])
    def test_published_files_describe_the_published_models(self, name, tmp_path):
        golden = golden_model(name)
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(golden["config"]))
        args = train.parse_args(train.train_parser(), ["--config", str(path), "--data-set", "IMNET"])
        assert (args.model, args.img_size, args.dataset, args.aug_repeats) == ("hvt", 224, "folder", 3)
        with torch.device("meta"):
            model = timm.create_model(args.model, img_size=args.img_size, **args.model_kwargs)
        named = {"hvt-ti-1": "hvt_tiny_1"}.get(name, "scale_hvt_tiny_4")
        assert sum(p.numel() for p in model.parameters()) == golden["params_total"]
        with torch.device("meta"):
            assert repr(timm.create_model(named)) == repr(model)
        assert timm.create_model("hvt", **{**golden["config"], "num_blocks": 1}).patch_embed.grid_size == (14, 14)

    def test_train_on_cifar_and_evaluate(self, tmp_path, tiny_json, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "cifar").mkdir()
        cifar_files(tmp_path / "cifar", "cifar100")
        data = ["--config", str(tiny_json), "--data-set", "CIFAR", "--data-path", "cifar", *QUICK]
        train.main([*data, "--max-steps", "1", "-b", "4", "--experiment", "run"])
        checkpoint = load(tmp_path / "runs" / "run")
        assert checkpoint["recipe"]["name"] == "hvt"
        assert checkpoint["recipe"]["kwargs"]["pool_block_width"] == 2
        assert checkpoint["options"]["aug_repeats"] == 3
        assert checkpoint["options"]["data_dir"] == "cifar"
        capsys.readouterr()
        top1 = float(rows(tmp_path / "runs" / "run")[0]["eval_top1"])
        for path in ("runs/run/last.pth.tar", None):
            where = ["--resume", path] if path else ["--experiment", "run", "--resume"]
            train.main([*data, "--eval", *where])
            assert f"top-1 {top1:.2f} %" in capsys.readouterr().out

    def test_evaluate_a_published_checkpoint(self, tmp_path, tiny_json, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        make_split(tmp_path / "data" / "val", count=2)
        model = timm.create_model("hvt", num_classes=3, input_size=16, **{**TINY, "patch_size": 2})
        nn.init.normal_(model.head.word_fc.weight)
        torch.save({"model": published_names(model)}, "hvt.pth")
        words = ["--data-set", "IMNET", "--data-path", "data", *QUICK]
        train.main(["--config", str(tiny_json), *words, "--eval", "--resume", "hvt.pth"])
        out = capsys.readouterr().out
        assert "6 images, raw weights" in out
        validate.main(["--config", str(tiny_json), "--checkpoint", "hvt.pth", *words[:-2]])
        assert capsys.readouterr().out == out

    def test_words_that_contradict_each_other(self, tiny_json):
        parser = train.train_parser()
        assert train.parse_args(parser, ["--no-repeated-aug", "--repeated-aug"]).aug_repeats == 3
        args = train.parse_args(parser, ["--config", str(tiny_json), "--no-repeated-aug", "--lr", "1e-3"])
        assert (args.aug_repeats, args.lr, args.lr_base) == (1, 1e-3, None)
        assert train.parse_args(parser, ["--config", str(tiny_json)]).lr_base == 5e-4
        with pytest.raises(UsageError, match="the data is named twice: a and --data-path b; give one"):
            train.parse_args(parser, ["a", "--data-path", "b"])
        with pytest.raises(UsageError, match="--eval has no checkpoint; give it as"):
            train.main(["a", "--eval"])

    def test_keys_nobody_knows_are_named(self, tmp_path):
        path = tmp_path / "hvt.json"
        path.write_text(json.dumps({**TINY, "pool_blok_width": 3}))
        with pytest.raises(UsageError, match="unknown key 'pool_blok_width'"):
            train.parse_args(train.train_parser(), ["--config", str(path)])
