"""SIGKILL at any moment: the same command with ``--resume`` goes on by itself and ends as a run that was not killed."""

import shutil
from collections import defaultdict

import pytest

from tests.vision import conftest
from tests.vision.kills import assert_same_run, contents, in_a_process
from tests.vision.segment import conftest as segment_conftest

LENGTH = {
    "classification": ("--epochs", 2, "-b", 8, "--checkpoint-steps", 1, "--model-ema", "--model-ema-decay", 0.5),
    "token labeling": ("--epochs", 2, "-b", 8, "--checkpoint-steps", 1, "--token-label", "--dense-weight", 0),
    "segmentation": ("-b", 2, "--steps", 4, "--val-steps", 2, "--checkpoint-steps", 1),
}


@pytest.fixture
def command(request, tmp_path, monkeypatch, images, shapes):
    """A training of a kind, given by indirect parameter: its module and command line; and the folder of its run."""
    monkeypatch.chdir(tmp_path)
    if request.param == "segmentation":
        module, words = "vision.segment.train", [str(shapes), *segment_conftest.TINY]
    else:
        module, words = "vision.train", [str(images), *conftest.TINY]
    words += [*map(str, LENGTH[request.param]), "--output", "runs", "--experiment", "run"]
    return module, words, tmp_path / "runs" / "run"


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """Four annotated images."""
    return segment_conftest.make_set(tmp_path_factory.mktemp("shapes"), {"training": 4, "validation": 2})


@pytest.mark.slow
@pytest.mark.parametrize("command", LENGTH, indirect=True)
def test_a_killed_run_goes_on(kills, command):
    module, words, folder = command
    moments = in_a_process(module, words, folder)
    expected = contents(folder)
    indices = defaultdict(list)
    for index, moment in enumerate(moments):
        indices[moment].append(index)
    assert {name for _, name in indices} >= {"last.pth.tar", "model_best.pth.tar", "options.yaml", "summary.csv"}
    count = 0
    for moment, places in indices.items():
        chosen = evenly(places, kills or 1)
        for index in chosen:
            shutil.rmtree(folder)
            assert in_a_process(module, words, folder, kill_at=index) is None
            assert in_a_process(module, [*words, "--resume"], folder)
            assert_same_run(folder, expected)
        print(*moment, f"{len(chosen)} of {len(places)} moments killed, resumed and equal")
        count += len(chosen)
    print(f"{count} kills")


def evenly(items, count):
    """At most so many of a list, the last among them."""
    count = min(count, len(items))
    return [items[(number + 1) * len(items) // count - 1] for number in range(count)]
