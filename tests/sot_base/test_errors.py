"""How command lines end, and that outputs are whole or not there."""

import errno
import os
import stat
import subprocess
import sys
import textwrap

import pytest

from sot_base.atomic import atomic_file
from sot_base.errors import run_main
from tests.support import REPOSITORY


def run(code, **options):
    code = "import sys\nfrom sot_base.errors import run_main\n" + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd=REPOSITORY, **options)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = run("run_main(lambda: print('a'))", stdout=full)  # fails when the buffer is flushed
    assert (done.returncode, done.stderr) == (
        2,
        "error: No space left on device: the output, or a temporary file; make room\n",
    )


def test_a_file_beyond_its_limit_is_one_line(tmp_path):
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        run_main(lambda: print("a" * 2000))
    """
    with (tmp_path / "output").open("w") as output:
        done = run(code, stdout=output)
    assert (done.returncode, done.stderr) == (2, "error: File too large: the output, or a temporary file; make room\n")


def test_an_interrupt_is_no_traceback(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run_main(interrupted)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_error_of_another_kind_is_not_hidden():
    def fail():
        raise OSError(errno.ECHILD, "no child")

    with pytest.raises(OSError, match="no child"):
        run_main(fail)


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
