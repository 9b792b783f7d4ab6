"""Files of label maps: what is written is read, and what does not fit is named."""

import contextlib
import json
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch

from sot_base.errors import UsageError
from vision.token_label.read_maps import LabelMap, check_complete, open_label_maps
from vision.token_label.write_maps import write_label_maps, write_torch_maps

CLASSES = ["cat", "dog", "owl"]
FILES = ["cat/0.png", "cat/1.png", "owl/2.jpeg"]


def random_map(classes=3, top_k=2, grid=(2, 3)):
    scores, indices = torch.randn(classes, *grid).topk(top_k, dim=0)
    return LabelMap(scores.half(), indices)


@pytest.fixture
def maps(tmp_path):
    """A folder of maps, and what is in it."""
    content = {name: random_map() for name in FILES}
    with write_label_maps(tmp_path / "maps", CLASSES, FILES, (2, 3), 2) as writer:
        for index, name in enumerate(FILES):
            writer.put(index, content[name])
    return tmp_path / "maps", content


def save_torch(path, tensor):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensor, path)


@pytest.fixture
def torch_files(tmp_path):
    """The published kind: a folder of torch files, and what is in it."""
    content = {name: random_map() for name in FILES}
    for name, (scores, classes) in content.items():
        save_torch((tmp_path / "torch" / name).with_suffix(".pt"), torch.stack([scores, classes.half()]))
    return tmp_path / "torch", content


def edit_header(folder, **changes):
    header = json.loads((folder / "header.json").read_text())
    (folder / "header.json").write_text(json.dumps({**header, **changes}))


class TestFolder:
    def test_read_what_was_written(self, maps):
        folder, content = maps
        opened = open_label_maps(folder, CLASSES)
        for name in FILES:
            assert opened.read(name).scores.equal(content[name].scores)
            assert opened.read(name).classes.equal(content[name].classes)
        assert len(pickle.dumps(opened)) < 2000  # worker processes open the arrays themselves
        again = pickle.loads(pickle.dumps(opened))
        assert again.read(FILES[2]).classes.equal(content[FILES[2]].classes)
        assert json.loads((folder / "header.json").read_text()) == {
            **{"format": "token-label-maps", "version": 1, "top_k": 2, "grid": [2, 3]},
            **{"classes": CLASSES, "files": FILES},
        }

    def test_classes_in_another_order_get_the_models_numbers(self, maps):
        folder, content = maps
        found = open_label_maps(folder, ["owl", "cat", "dog"]).read(FILES[0]).classes
        assert found.equal(torch.tensor([1, 2, 0])[content[FILES[0]].classes])

    def test_class_numbers_that_half_precision_cannot_hold(self, tmp_path):
        names = [f"class {index}" for index in range(5001)]
        label_map = LabelMap(torch.zeros(1, 1, 2), torch.tensor([[[4999, 2049]]]))
        with write_label_maps(tmp_path / "maps", names, ["a.png"], (1, 2), 1) as writer:
            writer.put(0, label_map)
        assert open_label_maps(tmp_path / "maps", names).read("a.png").classes.flatten().tolist() == [4999, 2049]

    @pytest.mark.parametrize("names, message", [
        (["cat", "dog", "owl", "ant", "bee"], "label maps of 3 classes for 5"),
        (["cat", "dog"], "label maps of 3 classes for 2"),
        (["cat", "dog", "ant"], "unknown class owl"),
    ])  # fmt: skip
    def test_other_classes(self, maps, names, message):
        with pytest.raises(UsageError, match=message):
            open_label_maps(maps[0], names)

    @pytest.mark.parametrize("changes, message", [
        ({"grid": [3, 3]}, r"scores.npy has float16 \(3, 2, 2, 3\), the header .*\(3, 2, 3, 3\)"),
        ({"files": ["a.png"]}, "not what their header says"),
        ({"version": 2}, "says token-label-maps 2; expected token-label-maps 1"),
        ({"classes": 3}, "classes: expected array, got int: .*header.json; make the maps again"),
        ({"grid": [2]}, "grid: expected array of length 2, got 1"),
        ({"grid": 2}, "grid: expected array, got int"),
        ({"classes": ["cat", "cat", "owl"]}, "a name twice: .*header.json"),
        ({"classes": [0, 1, 2]}, r"classes\[0\]: expected str, got int"),
        ({"files": ["cat/0.png", "cat/0.png", "owl/2.jpeg"]}, "a name twice"),
        ({"files": ["cat/0.png", ["cat/1.png"], "owl/2.jpeg"]}, r"files\[1\]: expected str, got array"),
    ])  # fmt: skip
    def test_a_header_that_does_not_fit(self, maps, changes, message):
        edit_header(maps[0], **changes)
        with pytest.raises(UsageError, match=message):
            open_label_maps(maps[0], CLASSES)

    def test_broken_files(self, maps):
        (maps[0] / "classes.npy").write_bytes(b"no array")
        with pytest.raises(UsageError, match=r"cannot read label maps: .*classes\.npy"):
            open_label_maps(maps[0], CLASSES)
        with (maps[0] / "classes.npy").open("wb") as file:
            np.savez(file, classes=np.zeros(3))
        with pytest.raises(UsageError, match=r"cannot read label maps: .*classes\.npy"):
            open_label_maps(maps[0], CLASSES)
        (maps[0] / "header.json").write_text("{")
        with pytest.raises(UsageError, match=r"not a JSON file .*header\.json"):
            open_label_maps(maps[0], CLASSES)

    def test_a_class_index_out_of_range(self, maps):
        np.load(maps[0] / "classes.npy", mmap_mode="r+")[1, 0, 0, 0] = 3
        opened = open_label_maps(maps[0], CLASSES)
        opened.read(FILES[0])
        with pytest.raises(UsageError, match=r"class index 3 of 3 classes: cat/1\.png in "):
            opened.read(FILES[1])


class TestTorchFiles:
    def test_read(self, torch_files):
        folder, content = torch_files
        opened = open_label_maps(folder, CLASSES)
        for name in FILES:
            assert opened.read(name).scores.equal(content[name].scores)
            assert opened.read(name).classes.equal(content[name].classes)

    def test_in_a_tar(self, torch_files, tmp_path):
        folder, content = torch_files
        with tarfile.open(tmp_path / "maps.tar", "w") as tar:
            tar.add(folder, ".")
        opened = open_label_maps(tmp_path / "maps.tar", CLASSES)
        assert opened.read(FILES[2]).scores.equal(content[FILES[2]].scores)

    def test_another_grid(self, torch_files):
        save_torch(torch_files[0] / "owl" / "2.pt", torch.zeros(2, 2, 4, 4).half())
        with pytest.raises(
            UsageError, match=r"another grid: .*owl/2\.pt has top-k 2 and grid 4x4, cat/0\.pt has .* 2x3"
        ):
            open_label_maps(torch_files[0], CLASSES).read(FILES[2])

    def test_a_class_index_out_of_range(self, torch_files):
        save_torch(torch_files[0] / "cat" / "0.pt", torch.full((2, 2, 2, 3), 2.0).half())
        opened = open_label_maps(torch_files[0], CLASSES[:2])
        with pytest.raises(UsageError, match=r"class index 2 of 2 classes: .*cat/0\.pt"):
            opened.read(FILES[0])

    def test_more_classes_than_half_precision_can_number(self, torch_files):
        open_label_maps(torch_files[0], [str(index) for index in range(2049)])
        with pytest.raises(UsageError, match=r"float16 for 2050 classes: .*up to 2,048"):
            open_label_maps(torch_files[0], [str(index) for index in range(2050)])
        save_torch(torch_files[0] / "cat" / "0.pt", torch.zeros(2, 2, 2, 3).bfloat16())
        with pytest.raises(UsageError, match=r"bfloat16 for 258 classes: .*up to 256"):
            open_label_maps(torch_files[0], [str(index) for index in range(258)])

    @pytest.mark.parametrize("part, value, message", [
        (0, torch.nan, r"scores that are not finite: .*cat/0\.pt"),
        (0, -torch.inf, r"scores that are not finite: .*cat/0\.pt"),
        (1, torch.nan, "class index nan of 3 classes"),
        (1, 0.5, "class index 0.5 of 3 classes"),
    ])  # fmt: skip
    def test_values_that_are_none(self, torch_files, part, value, message):
        content = torch.ones(2, 2, 2, 3)
        content[part, 1, 1, 2] = value
        save_torch(torch_files[0] / "cat" / "0.pt", content.half())
        with pytest.raises(UsageError, match=message):
            open_label_maps(torch_files[0], CLASSES).read(FILES[0])

    @pytest.mark.parametrize("content, message", [
        (torch.zeros(5, 14, 14), r"not a label map: .*cat/0\.pt holds torch\.float32 \(5, 14, 14\)"),
        (torch.zeros(2, 2, 2, 3, dtype=torch.long), r"holds torch\.int64"),
        (torch.zeros(2, 2, 2, 3).to_sparse(), "a saved Tensor where a dense tensor is expected"),
        ([1, 2], "a saved list where a dense tensor is expected"),
    ])  # fmt: skip
    def test_no_map(self, torch_files, content, message):
        save_torch(torch_files[0] / "cat" / "0.pt", content)
        with pytest.raises(UsageError, match=message):
            open_label_maps(torch_files[0], CLASSES)

    def test_a_broken_file(self, torch_files):
        path = torch_files[0] / "cat" / "1.pt"
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(
            UsageError, match=r"cannot read a label map: .*cat/1\.pt \(it is cut off, or no file of torch\.save"
        ):
            open_label_maps(torch_files[0], CLASSES).read(FILES[1])
        path.write_text("export W=1\n")  # torch's reader takes this for a pickle, and ends in an IndexError
        with pytest.raises(UsageError, match=r"cannot read a label map: .*cat/1\.pt"):
            open_label_maps(torch_files[0], CLASSES).read(FILES[1])
        torch.save(path, path)  # torch's own words advise to run what is in the file
        with pytest.raises(UsageError, match=r"cat/1\.pt \(it is cut off, or no file of torch\.save: \w+\); make"):
            open_label_maps(torch_files[0], CLASSES).read(FILES[1])


@pytest.mark.parametrize("kind", ["maps", "torch_files"])
def test_missing_maps_are_counted_and_named(kind, request):
    opened = open_label_maps(request.getfixturevalue(kind)[0], CLASSES)
    check_complete(opened, FILES)
    with pytest.raises(UsageError, match=r"2 of 3 images have no label map: .* lacks dog/8\.png but has cat/1\."):
        check_complete(opened, ["dog/8.png", FILES[0], "dog/9.png"])
    with pytest.raises(UsageError, match=r"no label map of dog/8\.png"):
        opened.read("dog/8.png")


def test_no_maps_at_all(tmp_path):
    with pytest.raises(UsageError, match="no label maps"):
        open_label_maps(tmp_path, CLASSES)
    with pytest.raises(UsageError, match="no such folder or tar"):
        open_label_maps(tmp_path / "none", CLASSES)


class TestWriter:
    @pytest.mark.parametrize("index_map, message", [
        (random_map(grid=(3, 3)), r"a label map of \(2, 3, 3\)"),
        (LabelMap(torch.zeros(2, 2, 3), torch.full((2, 2, 3), 3)), "class index 3 of 3 classes"),
        (LabelMap(torch.full((2, 2, 3), 1e6), torch.zeros(2, 2, 3, dtype=torch.long)), "finite in half precision"),
        (random_map(), "1 of 2 label maps were not written"),
    ])  # fmt: skip
    @pytest.mark.filterwarnings("ignore:overflow")
    def test_nothing_appears_after_an_error(self, tmp_path, index_map, message):
        writing = write_label_maps(tmp_path / "maps", CLASSES, FILES[:2], (2, 3), 2)
        with pytest.raises(ValueError, match=message), writing as writer:
            writer.put(0, index_map)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no way to take room beforehand")
    def test_takes_its_room_before_it_writes(self, tmp_path):
        files = [f"{index}.png" for index in range(1000)]
        with contextlib.suppress(ValueError), write_label_maps(tmp_path / "maps", CLASSES, files, (8, 8), 2):
            found = [path.stat() for path in tmp_path.glob(".maps.*/*.npy")]
            assert len(found) == 2
            assert all(file.st_blocks * 512 >= file.st_size > 1000 * 2 * 8 * 8 * 2 for file in found)

    def test_file_names_that_are_no_unicode(self, tmp_path):
        name = os.fsdecode(b"cat/\xff.png")
        with write_label_maps(tmp_path / "maps", CLASSES, [name], (2, 3), 2) as writer:
            writer.put(0, random_map())
        assert open_label_maps(tmp_path / "maps", CLASSES).read(name).scores.shape == (2, 2, 3)

    @pytest.mark.parametrize("files, grid, top_k, message", [
        ([], (2, 3), 2, "cannot write 0 maps"),
        (FILES, (0, 3), 2, "grid"),
        (FILES, (2, 3), 4, "top-k 4"),
        (["a.png", "a.png"], (2, 3), 2, "must not be repeated"),
    ])  # fmt: skip
    def test_sizes_that_cannot_be(self, tmp_path, files, grid, top_k, message):
        with pytest.raises(ValueError, match=message), write_label_maps(tmp_path / "maps", CLASSES, files, grid, top_k):
            pass


class TestTorchWriter:
    def test_read_what_was_written(self, tmp_path):
        content = [random_map() for _ in FILES]
        with write_torch_maps(tmp_path / "torch", CLASSES, FILES, (2, 3), 2) as writer:
            for index, label_map in enumerate(content):
                writer.put(index, label_map)
        files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt"))
        assert files == ["torch/cat/0.pt", "torch/cat/1.pt", "torch/owl/2.pt"]
        opened = open_label_maps(tmp_path / "torch", CLASSES)
        for name, (scores, classes) in zip(FILES, content, strict=True):
            assert opened.read(name).scores.equal(scores)
            assert opened.read(name).classes.equal(classes)

    @pytest.mark.parametrize("classes, files, message", [
        ([str(index) for index in range(2050)], FILES, "2050 classes: half precision holds .* 2,048 alone"),
        (CLASSES, ["a.png", "a.jpg"], "would share a file"),
        (CLASSES, FILES, "3 of 3 label maps were not written"),
    ])  # fmt: skip
    def test_nothing_appears_after_an_error(self, tmp_path, classes, files, message):
        with (
            pytest.raises(ValueError, match=message),
            write_torch_maps(tmp_path / "torch", classes, files, (2, 3), 2),
        ):
            pass
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind, ending", [("maps", "png"), ("torch_files", "pt")])
def test_superfluous_maps(kind, ending, request):
    opened = open_label_maps(request.getfixturevalue(kind)[0], CLASSES)
    assert opened.superfluous(FILES) == []
    assert opened.superfluous([FILES[0], FILES[2], "dog/9.png"]) == [f"cat/1.{ending}"]
