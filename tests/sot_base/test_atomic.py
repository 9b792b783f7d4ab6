"""Files and folders that are replaced in one move, and what a killed process leaves."""

import errno
import os
import stat
import subprocess
import sys

import pytest
import torch

from sot_base.atomic import atomic_file, atomic_folder, remove_unfinished
from sot_base.errors import os_error_message
from sot_base.torch_files import save_torch
from tests.support import REPOSITORY


def test_a_pipe_is_written_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_file(pipe) as path:
        path.write_text("text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_file_is_whole_or_as_it_was(tmp_path):
    file = tmp_path / "file"
    with atomic_file(file) as path:
        path.write_text("old")

    def interrupted():
        with atomic_file(file) as path:
            path.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_in_the_place_of_a_file_is_told_at_once(tmp_path):
    with pytest.raises(IsADirectoryError, match="a folder where a file is to be written"), atomic_file(tmp_path):
        raise AssertionError("no work is done")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("writer", [atomic_file, atomic_folder])
def test_a_full_disk_names_what_was_to_be_written(tmp_path, writer, number):
    with pytest.raises(OSError, match=os.strerror(number)) as error, writer(tmp_path / "new"):
        raise OSError(number, os.strerror(number), "what was read")
    assert error.value.filename == str(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_other_errors_keep_their_path(tmp_path):
    with pytest.raises(FileNotFoundError) as error, atomic_file(tmp_path / "new"):
        (tmp_path / "absent").read_text()
    assert error.value.filename == str(tmp_path / "absent")


def killed(code, *arguments):
    """Run code that kills itself."""
    command = [sys.executable, "-c", f"import os, signal, sys; from pathlib import Path\n{code}", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False)
    assert done.returncode == -9


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    imports, kill = "from sot_base.atomic import *", "os.kill(os.getpid(), signal.SIGKILL)"
    killed(f"{imports}\nwith atomic_file(sys.argv[1]) as path: path.write_text('x'); {kill}", tmp_path / "f")
    killed(f"{imports}\nwith atomic_folder(sys.argv[1]) as path: (path / 'x').touch(); {kill}", tmp_path / "g")
    (tmp_path / "whole").touch()
    (tmp_path / ".hidden").touch()
    assert [path.name[:3] for path in remove_unfinished(tmp_path)] == [".f.", ".g."]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "whole"]
    assert remove_unfinished(tmp_path / "absent") == []


class TestTorch:
    def test_it_is_torchs_file(self, tmp_path):
        content = {"a": torch.randn(1000), "b": [1, 2.5], "c": torch.ones(3)[1:]}
        save_torch(content, tmp_path / "file.pt")
        torch.testing.assert_close(torch.load(tmp_path / "file.pt", weights_only=True), content)

    @pytest.mark.parametrize("blocks", [0, 1, 200])
    def test_a_limit_is_named_and_nothing_half_written(self, tmp_path, blocks):
        save_torch({"old": 1}, tmp_path / "file.pt")
        code = (
            "import resource, torch\nfrom sot_base.errors import run_main\n"
            "from sot_base.torch_files import save_torch\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({512 * blocks},) * 2)\n"
            "run_main(lambda: save_torch({'a': torch.zeros(100_000)}, sys.argv[1]))"
        )
        command = [sys.executable, "-c", f"import sys\n{code}", str(tmp_path / "file.pt")]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        message = os_error_message(OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(tmp_path / "file.pt")))
        assert (done.returncode, done.stderr) == (2, f"error: {message}\n")
        assert torch.load(tmp_path / "file.pt", weights_only=True) == {"old": 1}
        assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]

    def test_other_errors_are_torchs_own(self, tmp_path):
        with pytest.raises(AttributeError, match=r"Can't (get|pickle) local object"):
            save_torch(lambda: None, tmp_path / "file.pt")
        assert list(tmp_path.iterdir()) == []


def test_a_folder_takes_the_place_of_no_file_and_that_of_what_a_link_leads_to(tmp_path):
    (tmp_path / "file").write_text("old")
    with (
        pytest.raises(NotADirectoryError, match="a file where a folder is to be written"),
        atomic_folder(tmp_path / "file"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with atomic_folder(tmp_path / "link") as temporary:
        (temporary / "new").touch()
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "there"]
