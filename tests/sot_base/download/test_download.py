"""Downloads against a server with faults: what is sent again, what is left behind, what the user is told."""

import hashlib
import itertools
import json
import os
import pwd
import random
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from sot_base.download import file as download_module
from sot_base.download import transfer as transfer_module
from sot_base.download.file import RemoteFile, cache_dir, download
from sot_base.errors import UsageError
from tests.sot_base.file_server import serve
from tests.support import REPOSITORY

BODY = random.Random(0).randbytes(1_000_003)
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    for name in ("SOT_OFFLINE", "HF_HUB_OFFLINE", "SOT_MIRROR", "SOT_ALLOW_HTTP", "http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download_module, "BACKOFF", 0.001)


@pytest.fixture
def server():
    with serve() as server:
        server.files["/models/big.bin"] = BODY
        yield server


@pytest.fixture
def remote(server):
    return RemoteFile(f"{server.address}/models/big.bin", SHA256, len(BODY))


@pytest.fixture
def target(tmp_path):
    return tmp_path / "cache" / "big.bin"


def names(target):
    return sorted(path.name for path in target.parent.iterdir())


def refused(remote, target, message):
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        download(remote, target)
    assert names(target) == []
    return str(error.value)


def start(remote, target):
    """Download in a process of its own."""
    script = (
        "import sys; from sot_base.download.file import RemoteFile, download; "
        "assert not {'torch', 'fairseq'} & sys.modules.keys(); download(RemoteFile(sys.argv[1]), sys.argv[2])"
    )
    words = [sys.executable, "-c", script, remote.url, target]
    return subprocess.Popen(words, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)


def wait_until(condition, process):
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def unused_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_whole_file(server, remote, target):
    assert download(remote, target) == target
    assert target.read_bytes() == BODY
    assert names(target) == ["big.bin"]
    assert download(remote, target) == target
    assert len(server.log) == 1
    download(remote, target, force=True)
    assert server.sent == [len(BODY)] * 2


def test_a_file_in_a_folder_without_write_access(server, remote, target, monkeypatch):
    download(remote, target)
    monkeypatch.setattr(download_module, "locked", None)  # the lock file could not be written
    assert download(remote, target) == target


def test_empty_file(server, target):
    server.files["/empty"] = b""
    assert download(RemoteFile(f"{server.address}/empty"), target).read_bytes() == b""


def test_cut_connections_are_resumed(server, remote, target):
    server.cuts = [300_000, 500_000]
    download(remote, target)
    assert target.read_bytes() == BODY
    assert server.ranges_asked == [None, "bytes=300000-", "bytes=800000-"]
    assert server.sent == [300_000, 500_000, 200_003]
    assert names(target) == ["big.bin"]


def test_a_later_call_resumes(server, remote, target, monkeypatch):
    monkeypatch.setattr(download_module, "RETRIES", -1)
    server.cuts = [400_000]
    with pytest.raises(
        UsageError, match=r"cannot download big.bin \(the connection ended after 400000 of 1000003 bytes"
    ):
        download(remote, target)
    assert names(target) == ["big.bin.part", "big.bin.part.json"]
    download(remote, target)
    assert server.sent == [400_000, 600_003]
    assert target.read_bytes() == BODY


def test_a_killed_process_is_followed_by_another(server, remote, target):
    server.cuts = [600_000]
    server.stall.set()
    process = start(remote, target)
    part = target.with_name("big.bin.part")
    wait_until(lambda: part.exists() and part.stat().st_size == 600_000, process)
    process.kill()
    process.communicate()
    server.stall.clear()
    assert names(target) == [".big.bin.lock", "big.bin.part", "big.bin.part.json"]
    download(remote, target)
    assert server.sent == [600_000, 400_003]
    assert target.read_bytes() == BODY
    assert names(target) == ["big.bin"]


def test_a_whole_part_asks_for_nothing(server, remote, target):
    download(remote, target)
    target.rename(target.with_name("big.bin.part"))
    notes = {"url": remote.url, "validator": '"one"', "size": len(BODY), "sha256": None}
    target.with_name("big.bin.part.json").write_text(json.dumps(notes))
    server.log.clear()
    assert download(remote, target).read_bytes() == BODY
    assert server.log == []
    assert names(target) == ["big.bin"]


@pytest.mark.parametrize("notes", [None, "{", '{"url": "https://example.org/other", "size": 4}'])
def test_a_part_of_unknown_origin_is_not_used(server, remote, target, notes):
    target.parent.mkdir()
    target.with_name("big.bin.part").write_bytes(b"junk")
    if notes is not None:
        target.with_name("big.bin.part.json").write_text(notes)
    assert download(remote, target).read_bytes() == BODY
    assert server.ranges_asked == [None]


def test_a_part_longer_than_the_file_starts_anew(server, remote, target):
    target.parent.mkdir()
    target.with_name("big.bin.part").write_bytes(BODY + b"more")
    notes = {"url": remote.url, "validator": '"one"', "size": None, "sha256": None}
    target.with_name("big.bin.part.json").write_text(json.dumps(notes))
    assert download(remote, target).read_bytes() == BODY
    assert server.ranges_asked == [f"bytes={len(BODY) + 4}-", None]


@pytest.mark.parametrize("obeys_if_range", [True, False])
def test_a_changed_file_starts_anew(server, target, obeys_if_range, monkeypatch):
    monkeypatch.setattr(download_module, "RETRIES", -1)
    remote = RemoteFile(f"{server.address}/models/big.bin")
    server.cuts = [400_000]
    with pytest.raises(UsageError, match="the connection ended"):
        download(remote, target)
    monkeypatch.setattr(download_module, "RETRIES", 1)
    server.files["/models/big.bin"] = changed = BODY[::-1]
    if obeys_if_range:
        server.etag = '"two"'
    else:
        server.headers["/models/big.bin"] = {"ETag": '"two"'}  # sent, while If-Range is held to be met
    assert download(remote, target).read_bytes() == changed
    assert server.ranges_asked[1] == "bytes=400000-"
    assert server.sent[-1] == len(BODY)


@pytest.mark.parametrize("fault", ["ignores Range", "has no validator"])
def test_a_server_that_cannot_resume_starts_anew(server, remote, target, fault):
    if fault == "ignores Range":
        server.ranges = False
    else:
        server.etag = None
    server.cuts = [400_000]
    assert download(remote, target).read_bytes() == BODY
    assert server.sent == [400_000, len(BODY)]


def test_a_server_that_always_cuts_is_given_up(server, remote, target):
    server.ranges = False
    server.cuts = [400_000] * 20
    with pytest.raises(UsageError, match="the connection ended after 400000 of"):
        download(remote, target)
    assert len(server.log) == 2 + download_module.RETRIES


def test_busy_server_is_asked_again(server, remote, target):
    server.statuses = [503, 429]
    assert download(remote, target).read_bytes() == BODY
    server.statuses = [503] * 20
    with pytest.raises(UsageError, match="HTTP 503 Service Unavailable"):
        download(remote, target, force=True)
    assert target.read_bytes() == BODY


def test_silent_server(server, remote, target, monkeypatch):
    monkeypatch.setattr(transfer_module, "TIMEOUT", 0.2)
    server.cuts = [300_000]
    server.stall.set()
    assert download(remote, target).read_bytes() == BODY
    assert server.sent[-1] == len(BODY) - 300_000


def test_wrong_checksum_leaves_nothing(server, remote, target):
    server.files["/models/big.bin"] = changed = BODY[:-1] + b"\0"
    found = hashlib.sha256(changed).hexdigest()
    message = refused(remote, target, f"not the published file (sha256 expected {SHA256}, got {found}): {remote.url}")
    assert message.endswith(f"put the file at {target} by hand")


def test_wrong_size_is_seen_before_the_transfer(server, remote, target):
    server.files["/models/big.bin"] = b"<html>log in first</html>"
    refused(remote, target, f"the server's file has 25 bytes, expected {len(BODY)}")


def test_not_found(server, target):
    url = f"{server.address}/models/other.bin"
    message = refused(RemoteFile(url), target, "HTTP 404 Not Found")
    assert message == f"cannot download big.bin (HTTP 404 Not Found): {url}; put the file at {target} by hand"
    assert len(server.log) == 1


def test_no_server(target):
    url = f"{unused_address()}/models/big.bin"
    message = refused(RemoteFile(url), target, "Connection refused")
    assert url in message
    assert f"put the file at {target} by hand" in message


@pytest.mark.parametrize("variable", ["SOT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline(server, remote, target, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    refused(remote, target, f"not downloaded, {variable} is set: {remote.url}; unset it, or put the file at {target}")
    assert server.log == []
    target.write_bytes(BODY)
    assert download(remote, target) == target


def test_a_file_put_by_hand_is_checked(server, remote, target):
    target.parent.mkdir()
    target.write_bytes(BODY[1:])
    with pytest.raises(UsageError, match=f"not the published file .size expected .*: {target}; remove it"):
        download(remote, target)
    assert target.exists()
    assert download(remote, target, force=True).read_bytes() == BODY


def test_checksum_that_hugging_face_states(server, target):
    server.redirects["/bert/resolve/main/model.safetensors"] = "/models/big.bin"
    remote = RemoteFile(f"{server.address}/bert/resolve/main/model.safetensors")
    server.headers["/bert/resolve/main/model.safetensors"] = {"X-Linked-ETag": f'"{SHA256}"'}
    server.cuts = [300_000]
    assert download(remote, target).read_bytes() == BODY
    assert server.sent == [300_000, len(BODY) - 300_000]
    target.unlink()
    server.headers["/bert/resolve/main/model.safetensors"] = {"X-Linked-ETag": f'"{"0" * 64}"'}
    refused(remote, target, f"sha256 expected {'0' * 64}, got {SHA256}")


def test_mirror(server, target, monkeypatch):
    server.files["/mirror/a/b.bin?x=1"] = BODY
    monkeypatch.setenv("SOT_MIRROR", f"{server.address}/mirror/")
    assert download(RemoteFile("https://example.invalid/a/b.bin?x=1", SHA256), target).read_bytes() == BODY
    target.unlink()
    monkeypatch.setenv("SOT_MIRROR", "mirror.example.org")
    refused(RemoteFile("https://example.invalid/a"), target, "not an http or https address: SOT_MIRROR=mirror.example.")


def test_addresses_are_https_unless_http_is_allowed(server, target, monkeypatch):
    remote = RemoteFile("https://example.invalid/a.bin", SHA256)
    monkeypatch.setenv("SOT_MIRROR", "http://mirror.invalid/files")
    refused(remote, target, "not an https address: http://mirror.invalid/files/a.bin; set SOT_ALLOW_HTTP=1")
    monkeypatch.setenv("http_proxy", server.address)
    server.files["http://mirror.invalid/files/a.bin"] = BODY
    monkeypatch.setenv("SOT_ALLOW_HTTP", "1")
    assert download(remote, target).read_bytes() == BODY


@pytest.mark.parametrize("address", ["ftp://example.invalid/a", "http://example.invalid/a"])
def test_redirects_to_addresses_that_are_not_https(server, target, address):
    server.redirects["/a"] = address
    remote = RemoteFile(f"{server.address}/a", SHA256)
    refused(remote, target, f"cannot download big.bin (a redirect to {address}, which is not https): {remote.url}; ")


def test_no_more_than_the_published_size_is_taken(server, target):
    server.unsized = True
    server.files["/models/big.bin"] = BODY * 50
    remote = RemoteFile(f"{server.address}/models/big.bin", SHA256, 5)
    refused(remote, target, "cannot download big.bin (the server sends more than 5 bytes)")
    assert names(target) == []


def test_a_server_that_trickles_is_given_up(server, remote, target, monkeypatch):
    clock = itertools.count(step=100)
    monkeypatch.setattr(transfer_module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(transfer_module, "BLOCK", 50)
    with pytest.raises(UsageError, match=r"cannot download big\.bin \(slower than 1024 bytes a second\)"):
        download(remote, target)
    assert len(server.log) == 1 + download_module.RETRIES
    assert target.with_name("big.bin.part").stat().st_size > 0  # for another day


def test_a_link_in_place_of_the_lock_is_left_alone(remote, target, tmp_path):
    target.parent.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("work of years")
    target.with_name(".big.bin.lock").symlink_to(precious)
    with pytest.raises(UsageError, match=r"a link where a lock is to be: .*big\.bin\.lock; remove it"):
        download(remote, target)
    assert precious.read_text() == "work of years"


@pytest.mark.parametrize("notes", ["[" * 10**5, "[]", '{"url": "%s", "size": "5", "validator": 3}', "{", '{"url": 3}'])
def test_damaged_notes_of_a_part_start_the_download_again(server, remote, target, notes):
    target.parent.mkdir()
    target.with_name("big.bin.part").write_bytes(b"other")
    target.with_name("big.bin.part.json").write_text(notes.replace("%s", remote.url))
    assert download(remote, target).read_bytes() == BODY


def test_proxy(server, target, monkeypatch):
    server.files["http://example.invalid/a.bin"] = BODY  # a proxy is asked for the whole address
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setenv("SOT_ALLOW_HTTP", "1")
    assert download(RemoteFile("http://example.invalid/a.bin"), target).read_bytes() == BODY


def test_full_disk(server, remote, target, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=f"the disk is full: {target}.part; make room"):
        download(remote, target)


def test_two_processes_at_once_download_once(server, remote, target):
    server.cuts = [300_000]
    server.stall.set()
    first = start(remote, target)
    wait_until(target.with_name("big.bin.part").exists, first)
    second = start(remote, target)
    assert "waiting for another process" in second.stderr.readline()
    server.stall.clear()
    for process in (first, second):
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert server.sent == [300_000, len(BODY) - 300_000]
    assert names(target) == ["big.bin"]


def test_what_is_downloaded_is_said_and_no_progress_bar_without_a_terminal(remote, target, capfd):
    download(replace(remote, terms="MIT, https://example.org/licence"), target)
    line = f"downloading {remote.url} (1.0 MB) to {target.parent}; terms: MIT, https://example.org/licence\n"
    assert capfd.readouterr() == ("", line)
    download(remote, target)
    assert capfd.readouterr() == ("", "")


def test_what_is_downloaded_is_said_once_also_after_a_cut(server, remote, target, capfd):
    server.cuts, server.unsized = [1000], True
    download(replace(remote, size=None), target)
    assert capfd.readouterr().err == f"downloading {remote.url} (size unknown) to {target.parent}\n"


def test_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("SOT_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("SOT_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_dir()) == "/home/someone/.cache/sot"


def test_a_user_without_a_home_is_told_of_the_cache(monkeypatch, tmp_path):
    def unknown(number):
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("SOT_CACHE", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UsageError, match="no home folder for downloads: SOT_CACHE; set it to a folder"):
        cache_dir()
    monkeypatch.setenv("SOT_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
