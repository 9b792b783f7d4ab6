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
def start(request, tmp_path, monkeypatch, images, shapes):
    """Start a training of a kind, given by indirect parameter; gives a function and the folder of its run."""
    monkeypatch.chdir(tmp_path)
    if request.param == "segmentation":
        from vision.segment.train import main

        words = [str(shapes), *segment_conftest.TINY]
    else:
        from vision.train import main

        words = [str(images), *conftest.TINY]
    words += map(str, LENGTH[request.param])

    def run(*more, name="run"):
        main([*words, "--output", "runs", "--experiment", name, *more])

    return run, tmp_path / "runs" / "run"


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """Four annotated images."""
    return segment_conftest.make_set(tmp_path_factory.mktemp("shapes"), {"training": 4, "validation": 2})


@pytest.mark.slow
@pytest.mark.parametrize("start", LENGTH, indirect=True)
def test_a_killed_run_goes_on(kills, start):
    run, folder = start
    moments = in_a_process(run, folder)
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
            assert in_a_process(run, folder, kill_at=index) is None
            run("--resume")
            assert_same_run(folder, expected)
        print(*moment, f"{len(chosen)} of {len(places)} moments killed, resumed and equal")
        count += len(chosen)
    print(f"{count} kills")


def evenly(items, count):
    """At most so many of a list, the last among them."""
    count = min(count, len(items))
    return [items[(number + 1) * len(items) // count - 1] for number in range(count)]
