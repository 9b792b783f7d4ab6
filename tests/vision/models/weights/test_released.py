"""Released weights by name, from a server that stands in for the published ones."""

import hashlib
import io

import pytest
import timm
import torch

import vision
from sot_base.errors import UsageError
from tests.sot_base.file_server import serve
from tests.vision.segment.mmseg import mmseg_state
from vision import train, validate
from vision.models.build import build_model
from vision.segment.load_trained import load_segmenter
from vision.segment.mmseg_names import MMSEG_WEIGHTS

TINY = {"embed_dim": 24, "depth": 2, "num_heads": 2, "stem_width": 8, "img_size": 32}
KWARGS = [f"{name}={value}" for name, value in TINY.items() if name != "img_size"]
ADDRESS = "/zihangJiang/TokenLabeling/releases/download/"
LVVIT_S = f"{ADDRESS}1.0/lvvit_s-26M-224-83.3.pth.tar"
PUBLISHED = (("patch_embed.proj.", "patch_embed."), ("head.cls_fc.", "head."), ("head.dense_fc.", "aux_head."))


@pytest.fixture
def server(monkeypatch, tmp_path):
    for name in ("SOT_OFFLINE", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SOT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOT_ALLOW_HTTP", "1")
    with serve() as server:
        monkeypatch.setenv("SOT_MIRROR", server.address)
        yield server


def saved(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def publish(server, model, path=LVVIT_S, **others):
    """Put a model's tensors on the server, under the names of the published code."""
    state = {}
    for name, tensor in model.state_dict().items():
        lead, new = next((pair for pair in PUBLISHED if name.startswith(pair[0])), ("", ""))
        state[new + name.removeprefix(lead)] = tensor
    server.files[path] = saved({"state_dict": state, **others})


def tiny(name="lvvit_s", **kwargs):
    return timm.create_model(name, **{**TINY, **kwargs}).eval()


def image(channels=3, size=32):
    return torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(1))


def logits(model, **kwargs):
    with torch.no_grad():
        return model(image(**kwargs))


def test_downloaded_once_and_then_offline(server, monkeypatch, tmp_path):
    source = tiny()
    publish(server, source, epoch=3)
    torch.testing.assert_close(logits(tiny(pretrained=True)), logits(source), rtol=0, atol=0)
    kept = tmp_path / "cache" / "vision" / "github.com" / LVVIT_S[1:]
    assert kept.read_bytes() == server.files[LVVIT_S]
    monkeypatch.setenv("SOT_OFFLINE", "1")
    torch.testing.assert_close(logits(tiny("lvvit_s.in1k_224", pretrained=True)), logits(source), rtol=0, atol=0)
    assert len(server.log) == 1


def test_each_size_has_a_tag(server):
    source = tiny()
    publish(server, source, f"{ADDRESS}1.0/lvvit_s-26M-384-84.4.pth.tar")
    for name in ("lvvit_s.in1k_384", "lvvit_s_384"):
        torch.testing.assert_close(logits(tiny(name, pretrained=True)), logits(source), rtol=0, atol=0)
    assert timm.get_pretrained_cfg("lvvit_s.in1k_384").input_size == (3, 384, 384)
    assert timm.get_pretrained_cfg("lvvit_s").input_size == (3, 224, 224)
    assert timm.get_pretrained_cfg("lvvit_l").tag == "untrained"  # none of 224 pixels is released
    with pytest.raises(UsageError, match=r"^no released weights: lvvit_l; choose lvvit_l\.in1k_448 or lvvit_l\.in1k_5"):
        tiny("lvvit_l", pretrained=True)


@pytest.mark.parametrize(
    "name, path",
    [
        ("hvt_tiny_1", "v1.0/hvt_ti_1.pth"),
        ("hvt_small_1", "v1.1/hvt_s_1.pth"),
        ("scale_hvt_tiny_4", "v1.0/scale_hvt_ti_4.pth"),
    ],
)
def test_hvt(server, name, path):
    sizes = {"num_heads": 2, "head_dim": 8, "img_size": 128}
    source = timm.create_model(name, **sizes).eval()
    state = {key.replace("head.word_fc.", "head."): value for key, value in source.state_dict().items()}
    server.files[f"/zhuang-group/HVT/releases/download/{path}"] = saved({"model": state})
    model = timm.create_model(name, pretrained=True, **sizes).eval()
    torch.testing.assert_close(logits(model, size=128), logits(source, size=128), rtol=0, atol=0)


def test_other_classes_channels_and_image_size(server, caplog):
    source = tiny()
    publish(server, source)
    model = tiny(pretrained=True, num_classes=4, in_chans=1, img_size=64)
    assert "head.cls_fc.weight" in caplog.text
    assert logits(model, channels=1, size=64).shape == (2, 4)
    torch.testing.assert_close(
        model.patch_embed.proj.conv1.weight, source.patch_embed.proj.conv1.weight.sum(1, keepdim=True)
    )
    assert torch.equal(model.blocks[1].attn.qkv.weight, source.blocks[1].attn.qkv.weight)


def test_another_head(server, caplog):
    source = tiny()
    publish(server, source)
    model = tiny(pretrained=True, mgcrp_heads=2, mgcrp_q=3)
    assert "head.pool.proj" in caplog.text
    assert torch.equal(model.head.cls_fc.weight, source.head.cls_fc.weight)
    assert torch.equal(model.blocks[1].attn.qkv.weight, source.blocks[1].attn.qkv.weight)


def test_features_only(server):
    source = tiny()
    publish(server, source)
    maps = logits(tiny(pretrained=True, features_only=True, out_indices=(0, 1)))
    with torch.no_grad():
        wanted = source.forward_intermediates(image(), intermediates_only=True)
    torch.testing.assert_close(maps, wanted, rtol=0, atol=0)


def test_a_checksum_in_the_name(server, tmp_path):
    publish(server, tiny(), "/good.pth")
    body = server.files.pop("/good.pth")
    right, wrong = hashlib.sha256(body).hexdigest()[:10], "0123456789abcdef"
    server.files |= {f"/weights-{right}.pth": body, f"/weights-{wrong}.pth": body}
    overlay = {"url": f"https://example.org/weights-{right}.pth"}
    tiny(pretrained=True, pretrained_cfg_overlay=overlay, cache_dir=tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == [f"weights-{right}.pth"]
    overlay = {"url": f"https://example.org/weights-{wrong}.pth"}
    with pytest.raises(UsageError, match=f"not the published file .sha256 expected {wrong}, got"):
        tiny(pretrained=True, pretrained_cfg_overlay=overlay)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_no_server_offline_and_a_damaged_file(server, monkeypatch):
    with pytest.raises(UsageError, match=r"^cannot download lvvit_s-26M-224-83\.3\.pth\.tar .*404.*; put the file at"):
        tiny(pretrained=True)
    server.files[LVVIT_S] = b"<html>no weights</html>"
    with pytest.raises(UsageError, match=r"lvvit_s-26M-224-83\.3\.pth\.tar"):
        tiny(pretrained=True)
    monkeypatch.setenv("SOT_MIRROR", "http://127.0.0.1:9")
    recipe = {"name": "lvvit_m", "num_classes": 3, "head": {}, "kwargs": TINY}
    with pytest.raises(UsageError, match=r"^cannot download lvvit_m-56M-224-84\.0\.pth\.tar"):
        build_model(recipe, pretrained=True)
    monkeypatch.setenv("SOT_OFFLINE", "1")
    with pytest.raises(UsageError, match=r"^not downloaded, SOT_OFFLINE is set: https://github\.com/zihangJiang/"):
        build_model(recipe, pretrained=True)


def test_a_file_that_would_run_code(server):
    class Harmful:
        def __reduce__(self):
            return (print, ("run",))

    server.files[LVVIT_S] = saved({"state_dict": {}, "extra": Harmful()})
    with pytest.raises(UsageError, match=r"lvvit_s-26M-224-83\.3\.pth\.tar"):
        tiny(pretrained=True)


@pytest.mark.parametrize("name", ["so_vit_7", "So_vit_7"])
def test_a_page_that_asks_for_confirmation(server, tmp_path, name):
    with pytest.raises(
        UsageError, match=r"by hand: https://drive\.google\.com/file/d/1-MTuAbQ\S+; .*dict\(file=\.\.\.\)$"
    ):
        timm.create_model(name, pretrained=True)
    sizes = {"embed_dim": 24, "depth": 2, "num_heads": 2, "img_size": 64, "num_classes": 1000}
    source = timm.create_model(name, **sizes).eval()
    torch.save(source.state_dict(), tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth")}
    model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **sizes).eval()
    torch.testing.assert_close(logits(model, size=64), logits(source, size=64), rtol=0, atol=0)


def test_validate_and_train(server, images, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = tiny()
    publish(server, source)
    words = [str(images), "--model", "lvvit_s", "--pretrained", "--img-size", "32", "--device", "cpu", "-j", "0"]
    words += ["--model-kwargs", *KWARGS]
    validate.main([*words, "--num-classes", "3"])
    assert "6 images, pretrained weights" in capsys.readouterr().out
    train.main(
        [*words, "--recipe", "none", "--epochs", "1", "--lr", "0", "--warmup-epochs", "0", "--experiment", "run"]
    )
    trained = vision.load_checkpoint(tiny(num_classes=3), tmp_path / "out" / "train" / "run" / "last.pth.tar")
    assert torch.equal(trained.blocks[1].attn.qkv.weight, source.blocks[1].attn.qkv.weight)
    assert len(server.log) == 1


def test_no_released_weights(images):
    with pytest.raises(
        UsageError, match=r"^no released weights: sot_tiny; give the file of weights as the command's --ch"
    ):
        validate.main([str(images), "--model", "sot_tiny", "--pretrained", "--device", "cpu"])


def test_upernet(server):
    server.files[f"{ADDRESS}v1.1-seg/upernet_lvvit_s.pth"] = saved({"state_dict": mmseg_state()})
    sizes = {"embed_dim": 32, "depth": 4, "num_heads": 2, "stem_width": 8}
    found = load_segmenter(None, "lvvit_s", sizes, pretrained=True)
    wanted = mmseg_state()["decode_head.conv_seg.weight"]
    assert torch.equal(found.model.state_dict()["segmentation_head.0.weight"], wanted)
    with pytest.raises(UsageError, match=r"^both say the weights: --checkpoint a and --pretrained; give one"):
        load_segmenter("a", "lvvit_s", pretrained=True)
    with pytest.raises(UsageError, match=rf"--model, one of {', '.join(MMSEG_WEIGHTS)}, or --checkpoint"):
        load_segmenter(None, "sot_small", pretrained=True)
