"""Class names and files from folders, tars, CIFAR's layout and scikit-learn's digits."""

import pickle
import shutil
import tarfile

import numpy as np
import pytest

from sot_base.errors import UsageError
from tests.vision.conftest import CLASSES, make_image, make_split
from vision.data import match_classes, names_for_model, open_source
from vision.data.classes import describe, imagenet_a_names, imagenet_names, natural_order
from vision.data.tar_tree import TarTree


def pixels(source):
    return [np.asarray(source.image(index)).tolist() for index in range(len(source.targets))]


def pack(folder, target, arcname=""):
    with tarfile.open(target, "w") as tar:
        tar.add(folder, arcname=arcname or folder.name)
    return target


def test_folder(images):
    train, val = open_source(str(images), "train"), open_source(str(images), "val")
    assert train.class_names == val.class_names == list(CLASSES)
    assert np.bincount(train.targets).tolist() == [5, 5, 5]
    assert train.name(0).endswith("train/cat/0.png")
    assert val.image(0).size == (12, 12)


@pytest.mark.parametrize("dataset", ["folder", "digits"])
def test_a_part_of_the_images(images, dataset):
    whole = open_source(str(images), "train", dataset)
    part = whole.subset(np.array([7, 2]))
    assert part.class_names == whole.class_names
    assert part.targets.tolist() == whole.targets[[7, 2]].tolist()
    assert pixels(part) == [pixels(whole)[index] for index in (7, 2)]


def test_numeric_folders_in_natural_order(tmp_path):
    make_split(tmp_path / "train", [str(number) for number in range(12)], count=1)
    source = open_source(str(tmp_path), "train")
    assert source.class_names == [str(number) for number in range(12)]
    assert [source.class_names[t] for t in source.targets] == [p.split("/")[0] for p in source.paths]
    assert natural_order(["b10", "b9", "1", "01"]) == ["01", "1", "b9", "b10"]


def test_hidden_files_and_folders_are_ignored(tmp_path):
    make_split(tmp_path / "train")
    make_split(tmp_path / "train", [".ipynb_checkpoints", "__MACOSX"])
    shutil.copy(tmp_path / "train" / "cat" / "0.png", tmp_path / "train" / "cat" / "._0.png")
    source = open_source(str(tmp_path), "train")
    assert source.class_names == list(CLASSES)
    assert len(source.targets) == 12


def test_images_in_deeper_folders_belong_to_the_top_folder(tmp_path):
    make_split(tmp_path / "train" / "cat", ["images", "more"])
    make_split(tmp_path / "train" / "dog", ["images"])
    source = open_source(str(tmp_path), "train")
    assert source.class_names == ["cat", "dog"]
    assert np.bincount(source.targets).tolist() == [8, 4]


def test_flat_split_is_an_error_and_loose_files_are_named(tmp_path, caplog):
    (tmp_path / "val").mkdir()
    make_image(0, 0).save(tmp_path / "val" / "loose.png")
    with pytest.raises(UsageError, match=r"1 images, but none in a class folder: .*val; .*<split>/<class>/<image>"):
        open_source(str(tmp_path), "val")
    make_split(tmp_path / "val")
    (tmp_path / "val" / "empty").mkdir()
    assert open_source(str(tmp_path), "val").class_names == list(CLASSES)
    assert "1 images outside the class folders are ignored" in caplog.text
    assert "loose.png" in caplog.text
    assert "folders without images are ignored" in caplog.text


@pytest.mark.parametrize("name", ["val", "validation", "valid", "test"])
def test_split_synonyms(tmp_path, name):
    make_split(tmp_path / name, count=1)
    assert open_source(str(tmp_path), "val").where.endswith(name)


def test_split_that_is_missing(tmp_path, images):
    make_split(tmp_path / "training", count=1)
    with pytest.raises(UsageError, match=r"no val folder: .* has training; expected val/<class>/<image>"):
        open_source(str(tmp_path), "val")
    with pytest.raises(UsageError, match=r"no train folder: .* has cat, dog, owl"):
        open_source(str(images / "val"), "train")
    with pytest.raises(UsageError, match=r"no such folder or tar: .*nowhere"):
        open_source(str(tmp_path / "nowhere"), "val")
    with pytest.raises(UsageError, match="no data"):
        open_source(None, "train")


def test_class_folders_without_a_split(images, tmp_path):
    assert open_source(str(images / "val"), "val").class_names == list(CLASSES)
    make_split(tmp_path, ["bus", "train"], count=1)  # a class that is called like a split
    assert open_source(str(tmp_path), "val").class_names == ["bus", "train"]
    assert open_source(str(tmp_path), ".").class_names == ["bus", "train"]


@pytest.mark.parametrize("layout", ["one tar", "tar with a top folder", "tars in a folder", "split folders in tars"])
def test_tar(images, tmp_path, layout):
    if layout == "one tar":
        root = tmp_path / "all.tar"
        with tarfile.open(root, "w") as tar:
            tar.add(images / "train", arcname="./train")
            tar.add(images / "val", arcname="./val")
    elif layout == "tar with a top folder":
        root = pack(images, tmp_path / "all.tar", "top")
    else:
        root = tmp_path
        for split in ("train", "val"):
            pack(images / split, tmp_path / f"{split}.tar", split if layout == "split folders in tars" else ".")
    for split in ("train", "val"):
        source, expected = open_source(str(root), split), open_source(str(images), split)
        assert source.class_names == expected.class_names
        assert source.targets.tolist() == expected.targets.tolist()
        assert pixels(source) == pixels(expected)
        assert ".tar" in source.name(0)


def test_tar_is_pickled_without_its_file(images, tmp_path):
    tree = TarTree(pack(images / "val", tmp_path / "val.tar"))
    content = tree.read("val/cat/100.png")
    copy = pickle.loads(pickle.dumps(tree))
    assert copy.read("val/cat/100.png") == content


def test_compressed_or_broken_tar(tmp_path):
    path = tmp_path / "val.tar"
    path.write_bytes(b"no tar at all")
    with pytest.raises(UsageError, match=r"cannot read the tar: .*val\.tar"):
        open_source(str(path), "val")


CIFAR = {
    "cifar10": ("cifar-10-batches-py", "batches.meta", "data_batch_2", "test_batch", "label_names", "labels"),
    "cifar100": ("cifar-100-python", "meta", "train", "test", "fine_label_names", "fine_labels"),
}


def cifar_files(root, dataset):
    data = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
    folder, meta, train, test, names, labels = CIFAR[dataset]
    (root / folder).mkdir()
    (root / folder / meta).write_bytes(pickle.dumps({names: ["b", "a"]}))
    for name, values in ((train, [0, 1, 1, 0]), (test, [1, 1, 1, 1])):
        (root / folder / name).write_bytes(pickle.dumps({"data": data, labels: values}))
    return data, root / folder / train


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_cifar(tmp_path, dataset):
    data, file = cifar_files(tmp_path, dataset)
    train, val = open_source(str(tmp_path), "train"), open_source(str(tmp_path), "val", dataset)
    assert train.class_names == ["b", "a"]  # CIFAR's own order
    assert train.targets.tolist() == [0, 1, 1, 0]
    assert val.targets.tolist() == [1, 1, 1, 1]
    assert np.array_equal(np.asarray(train.image(2)).transpose(2, 0, 1).reshape(-1), data[2])
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UsageError, match=f"cannot read a CIFAR file: .*{file.name}"):
        open_source(str(tmp_path), "train")


def test_cifar_files_run_no_code(tmp_path):
    _, file = cifar_files(tmp_path, "cifar10")
    file.write_bytes(b"cos\nsystem\n(S'touch hacked'\ntR.")
    with pytest.raises(UsageError, match=r"posix\.system is not allowed|os\.system is not allowed"):
        open_source(str(tmp_path), "train")


def test_cifar_missing(tmp_path):
    with pytest.raises(UsageError, match=r"no cifar10 files: .*--download"):
        open_source(str(tmp_path), "train", "cifar10")


def test_digits():
    train, val = open_source(None, "train", "digits"), open_source(None, "val", "digits")
    assert len(train.targets) == 1437
    assert len(val.targets) == 360
    assert train.class_names == [str(digit) for digit in range(10)]
    values = np.asarray(train.image(0))
    assert values.shape == (8, 8, 3)
    assert values.max() == 255


def test_classes_are_matched_by_name():
    assert match_classes(["b", "c"], ["a", "b", "c"], "val").tolist() == [1, 2]
    assert match_classes(["c", "a", "b"], ["a", "b", "c"], "val").tolist() == [2, 0, 1]
    with pytest.raises(UsageError, match="unknown class x, y: val; the model knows 2 classes: a, b"):
        match_classes(["a", "x", "y"], ["a", "b"], "val")


def test_names_for_a_model_without():
    synsets = imagenet_names()
    assert names_for_model(1000, [synsets[7], synsets[3]]) == list(synsets)
    assert names_for_model(2, ["a", "b"]) == ["a", "b"]
    with pytest.raises(UsageError, match="3 outputs for the data's 2 classes"):
        names_for_model(3, ["a", "b"])


def test_imagenet_names():
    assert len(imagenet_names()) == 1000
    assert list(imagenet_names()) == sorted(imagenet_names())
    assert len(set(imagenet_a_names())) == 200
    assert set(imagenet_a_names()) < set(imagenet_names())
    assert describe("n01498041") == "stingray"
    assert describe("anything") == "anything"
