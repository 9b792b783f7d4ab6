"""How command lines end, and that outputs are whole or not there."""

import errno
import os
import subprocess
import sys
import textwrap

import pytest

from sot_base import errors
from sot_base.errors import UsageError, os_error_message, run_main
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
        "error: No space left on device: the output, or a temporary file; make room, or choose another place\n",
    )


def test_a_file_beyond_its_limit_is_one_line(tmp_path):
    code = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        run_main(lambda: print("a" * 2000))
    """
    with (tmp_path / "output").open("w") as output:
        done = run(code, stdout=output)
    advice = "raise the limit of file sizes (ulimit -f), or choose another place"
    message = f"error: File too large: the output, or a temporary file; {advice}\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_an_interrupt_is_no_traceback(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run_main(interrupted)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_long_message_loses_its_middle():
    text = str(UsageError(f"unknown value {'x' * 5000}: config.json; correct the file"))
    assert len(text) < 1600
    assert text.startswith("unknown value xxx")
    assert text.endswith("xxx: config.json; correct the file")


def test_an_error_of_another_kind_is_not_hidden():
    def fail():
        raise OSError(errno.ECHILD, "no child")

    with pytest.raises(OSError, match="no child"):
        run_main(fail)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_output_is_utf8_whatever_the_locale(encoding):
    code = (
        "from sot_base.errors import run_main; import sys\n"
        "run_main(lambda: print('\\u597d \\udcff') or sys.stderr.write('\\u574f') and 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(REPOSITORY)},
        check=True,
    )
    assert (done.stdout, done.stderr) == ("\u597d ".encode() + b"\xff\n", "\u574f".encode())


@pytest.mark.parametrize(
    "error, message",
    [
        (OSError(errno.EACCES, "Denied", "/a"), "Denied: /a; check the path and who may write there"),
        (
            OSError(errno.ENOSPC, "Full", "/read", None, "/written"),
            "Full: /written; make room, or choose another place",
        ),
        (OSError(errno.EROFS, "Read-only", "/a"), "Read-only: /a; choose a place that can be written to"),
        (OSError(errno.ECHILD, "no child"), None),
    ],
)
def test_the_path_that_was_written_and_what_to_do(error, message):
    assert os_error_message(error) == message


def test_a_loading_process_whose_death_is_told_while_another_error_is_read(monkeypatch, capsys):
    stock, calls = errors.loading_process_message, []

    def interrupted(error):
        calls.append(error)
        if len(calls) == 1:  # torch's handler of SIGCHLD
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        return stock(error)

    def main():
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(errors, "loading_process_message", interrupted)
    with pytest.raises(SystemExit) as end:
        errors.run_main(main)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: a loading process was killed (Killed): the data loader; ")
    assert len(calls) == 2
