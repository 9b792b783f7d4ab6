"""Download a file once: resumed after a cut, checked, locked against a second process, renamed when whole.

Environment variables:

* ``SOT_CACHE``: the folder for downloads, by default ``~/.cache/sot``;
* ``SOT_OFFLINE=1`` (or ``HF_HUB_OFFLINE=1``): no connection is made;
* ``SOT_MIRROR``: a base address (``https://mirror.example.org/files``) that replaces the scheme and host of every
  address, for a network of its own;
* ``SOT_ALLOW_HTTP=1``: addresses and redirects may be http, too, not https alone;
* ``https_proxy``, ``http_proxy``, ``no_proxy``: as :mod:`urllib` reads them.

Imports the standard library and tqdm only, so that a download starts at once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from sot_base.download.transfer import Part, Refused, TransferCut, is_secure, transfer

__all__ = ["RemoteFile", "cache_dir", "download", "is_offline", "locked", "sha256_of"]

OFFLINE_VARIABLES = ("SOT_OFFLINE", "HF_HUB_OFFLINE")
RETRIES = 4  # attempts after one that brought nothing new
BACKOFF = 1.0  # seconds before the first of them; doubles from one to the next

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """A published file.

    Args:
        url: Its https address.
        sha256: Its published checksum, or the first digits of it; None where none is known.
        size: Its published size in bytes.
        terms: The licence, or where it is found; said before the download.
    """

    url: str
    sha256: str | None = None
    size: int | None = None
    terms: str | None = None

    @property
    def name(self) -> str:
        """The last part of the address."""
        return urlsplit(self.url).path.rpartition("/")[2]


def cache_dir() -> Path:
    """Return the folder for downloaded files: ``$SOT_CACHE``, by default ``~/.cache/sot``.

    Raises:
        UsageError: If neither is known, as for a container's user without a home.
    """
    if os.environ.get("SOT_CACHE"):
        return Path(os.environ["SOT_CACHE"])
    try:
        return Path.home() / ".cache" / "sot"
    except RuntimeError:
        raise _mistake("the user has no home folder for downloads: SOT_CACHE; set it to a folder") from None


def is_offline() -> bool:
    """Return whether ``SOT_OFFLINE`` or ``HF_HUB_OFFLINE`` forbids connections."""
    return bool(_forbidding())


def _forbidding() -> list[str]:
    return [name for name in OFFLINE_VARIABLES if os.environ.get(name, "").lower() in ("1", "true", "yes", "on")]


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(remote: RemoteFile, target: str | os.PathLike[str], force: bool = False) -> Path:
    """Download a file, unless it is there.

    A line on standard error says what is downloaded, from where, how large it is and under which terms, as soon as the
    server has answered. What has arrived is kept in ``<target>.part`` (``<target>.part.json`` says what of), and a
    later call goes on from there if the server still has the same file; so does this one when the connection is cut.
    Where no checksum is known, the one that Hugging Face states for large files is used.

    Args:
        remote: What to download.
        target: Where to; its folder is made.
        force: Download again even if `target` exists.

    Returns:
        `target`.

    Raises:
        UsageError: If the file cannot be had (what has arrived is kept), or is not the published one (nothing is
            kept). The message names the address and where to put the file by hand.
    """
    target = Path(target).absolute()
    if not force and _is_there(remote, target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target):
        if not force and _is_there(remote, target):
            return target
        by_hand = f"put the file at {target} by hand"
        if is_offline():
            variable = " and ".join(_forbidding())
            raise _mistake(f"not downloaded, {variable} is set: {remote.url}; unset it, or {by_hand}")
        url = _mirrored(remote.url)
        if not is_secure(url):
            raise _mistake(f"not an https address: {url}; set SOT_ALLOW_HTTP=1 if you trust the network, or {by_hand}")
        part = Part(target, url, remote.size, remote.terms)
        try:
            _fetch(part)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _mistake(f"the disk is full: {part.path}; make room and run it again") from None
        except (Refused, TransferCut) as error:
            raise _mistake(f"cannot download {target.name} ({error}): {url}; {by_hand}") from None
        wrong = _what_is_wrong(part.path, remote.sha256 or part.sha256, remote.size)
        if wrong:
            part.discard()
            raise _mistake(f"not the published file ({wrong}): {url}; try again, or {by_hand}")
        part.finish(target)
    return target


def _is_there(remote: RemoteFile, target: Path) -> bool:
    if not target.is_file():
        return False
    wrong = _what_is_wrong(target, remote.sha256, remote.size)
    if wrong:
        raise _mistake(f"not the published file ({wrong}): {target}; remove it to download it again")
    return True


def _fetch(part: Part) -> None:
    """Transfer the file into its part, with new attempts after a cut; a server that never answered gets none."""
    failures, most, answered = 0, part.length, False
    while not part.is_whole:
        try:
            transfer(part)
            return
        except TransferCut as cut:
            failures = 0 if part.length > most and not cut.slow else failures + 1
            most = max(most, part.length)
            answered = answered or cut.reached
            if failures > RETRIES or not answered:
                raise
            logger.info("%s; trying again: %s", cut, part.url)
            time.sleep(BACKOFF * 2 ** max(failures - 1, 0))


def _what_is_wrong(path: Path, sha256: str | None, size: int | None) -> str | None:
    length = path.stat().st_size
    if size is not None and length != size:
        return f"size expected {size}, got {length}"
    if sha256 is not None and not (found := sha256_of(path)).startswith(sha256):
        return f"sha256 expected {sha256}, got {found}"
    return None


def _mirrored(url: str) -> str:
    mirror = os.environ.get("SOT_MIRROR")
    if not mirror:
        return url
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise _mistake(f"not an http or https address: SOT_MIRROR={mirror}; write https://<host>[/<path>]")
    parts = urlsplit(url)
    return mirror.rstrip("/") + parts.path + (f"?{parts.query}" if parts.query else "")


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold ``.<target>.lock`` beside `target`; a second process waits for the first.

    Raises:
        UsageError: If a link lies in its place: what it points to is not touched.
    """
    path = target.with_name(f".{target.name}.lock")
    while True:
        file = _open_lock(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("waiting for another process that works on %s", target)
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            break
        file.close()  # the process that held it has removed it meanwhile
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _open_lock(path: Path) -> IO[bytes]:
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+b")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _mistake(f"a link where a lock is to be: {path}; remove it") from None


def _mistake(message: str) -> Exception:
    from sot_base.errors import UsageError  # its package imports torch, which takes longer than most downloads

    return UsageError(message)
