"""The scripts of glue_scripts as a user types them first: nothing set, nothing on the machine but the package."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.published_files import make_published_files, write_site
from tests.sot_base.file_server import serve
from tests.support import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
VARIABLES = ("GLUE_DIR", "GPT2_BPE_DIR", "ENCODER", "HEAD", "SEEDS", "LR", "BATCH_SIZE", "MAX_EPOCH", "MAX_LENGTH")
VARIABLES += ("LOWER_CASE", "OUT_DIR", "DRY_RUN", "TASKS", "SOT_OFFLINE", "HF_HUB_OFFLINE", "SOT_MIRROR")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return make_published_files(tmp_path_factory.mktemp("published"))


@pytest.fixture
def start(tmp_path):
    """Start a script in an empty folder, against a mirror."""
    site = write_site(tmp_path / "site")

    def start(script, mirror, *words, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONPATH": f"{site}:{REPOSITORY}", "SOT_CACHE": str(tmp_path / "cache")}
        environment |= {"SOT_MIRROR": mirror, "no_proxy": "127.0.0.1", **variables}
        command = ["bash", str(REPOSITORY / "glue_scripts" / script), *words]
        folder = tmp_path / "here"
        folder.mkdir(exist_ok=True)
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=900)

    return start


def test_rte_with_nothing_set_but_a_short_training(published, start, tmp_path):
    with serve() as server:
        server.files = published
        run = start("rte.sh", server.address, SEEDS="1 2", MAX_EPOCH="1")  # else it would take a quarter of an hour
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    folder, cache = tmp_path / "here", tmp_path / "cache"
    said = re.findall(r"^downloading (\S+) \((.+) MB\) to (\S+); terms: (.+)$", run.stderr, re.M)
    assert [(url.removeprefix(server.address), place) for url, _, place, _ in said] == [
        ("/glue/data/RTE.zip", str(folder / "glue_data")),
        ("/fairseq/models/roberta.base.tar.gz", str(cache / "roberta.base")),
        *((f"/fairseq/gpt2_bpe/{name}", str(cache / "gpt2_bpe")) for name in ("encoder.json", "vocab.bpe", "dict.txt")),
    ]
    assert all(size == f"{len(published[url.removeprefix(server.address)]) / 1e6:,.1f}" for url, size, _, _ in said)
    assert "gluebenchmark.com" in said[0][3]
    assert "MIT" in said[1][3]
    assert sorted(path.name for path in (folder / "glue_data").iterdir()) == ["RTE"]
    results = json.loads((folder / "out" / "rte" / "results.json").read_text())
    assert (results["task"], results["encoder"], sorted(results["heads"])) == ("RTE", "roberta.base", ["cls", "mgcrp"])
    assert all(list(head["seeds"]) == ["1", "2"] for head in results["heads"].values())
    rows = [[cell.strip() for cell in line.split("|")] for line in run.stdout.splitlines() if line.startswith("| rte ")]
    assert [(row[2], row[5], row[6], row[10]) for row in rows] == [
        ("RTE", "cls", "2", "77.60"),
        ("RTE", "mgcrp", "2", "80.50"),
    ]
    assert "== device: " in run.stdout
    assert run.stdout.count("epoch 001 | valid on") == 4


def test_what_is_there_is_not_downloaded(published, start, tmp_path):
    (tmp_path / "here" / "mine" / "RTE").mkdir(parents=True)
    (tmp_path / "here" / "mine" / "RTE" / "train.tsv").write_text("my own, without a dev set\n")
    with serve() as server:
        server.files = published
        run = start("rte.sh", server.address, GLUE_DIR="mine", ENCODER="scratch:1x16")
        assert {Path(path).name for path, _, _ in server.log} == {"encoder.json", "vocab.bpe", "dict.txt"}
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith("error: ")
    assert (tmp_path / "here" / "mine" / "RTE" / "train.tsv").read_text() == "my own, without a dev set\n"


@pytest.mark.parametrize("script", ["rte.sh", "all.sh"])
def test_without_a_network_one_line(start, tmp_path, script):
    run = start(script, "http://127.0.0.1:9")  # nobody listens there
    task = "RTE" if script == "rte.sh" else "CoLA"
    address, place = f"http://127.0.0.1:9/glue/data/{task}.zip", tmp_path / "here" / "glue_data" / f"{task}.zip"
    assert (run.returncode, run.stdout) == (2, "")
    assert re.fullmatch(
        rf"error: cannot download {task}.zip \(.*refused.*\): {re.escape(address)}; put the file at {place} by hand\n",
        run.stderr,
    )
    assert not (tmp_path / "here" / "glue_data").exists()


def test_a_set_of_tasks_downloads_before_the_first_training(published, start, tmp_path):
    with serve() as server:
        server.files = {path: body for path, body in published.items() if "roberta" not in path}
        run = start("all.sh", server.address, TASKS="RTE CoLA")
        assert [path for path, _, _ in server.log][:3] == [
            "/glue/data/RTE.zip",
            "/glue/data/CoLA.zip",
            "/fairseq/models/roberta.base.tar.gz",
        ]
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.splitlines()[-1].startswith("error: encoder roberta.base is not on this machine: ")
    assert not (tmp_path / "here" / "out").exists()
