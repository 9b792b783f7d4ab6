"""One HTTP transfer into a ``.part`` file, from where the last one stopped if the server still has the same file."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from email.message import Message
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from tqdm import tqdm

__all__ = ["Part", "Refused", "TransferCut", "is_secure", "transfer"]

TIMEOUT = 30.0  # seconds without a byte
WINDOW = 60.0  # seconds over which a connection must bring SLOWEST bytes a second
SLOWEST = 1024
LARGEST = 2**36  # bytes, of a file whose size nobody states
BLOCK = 2**18  # bytes
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
NOTED = ("url", "validator", "size", "sha256")


class TransferCut(Exception):  # noqa: N818
    """The connection failed or ended early: another attempt may complete the file.

    Args:
        reason: What happened.
        reached: Whether the server had answered.
        slow: Whether it was too slow, so that a few more bytes are not worth another attempt.
    """

    def __init__(self, reason: object, reached: bool, slow: bool = False) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.reached = reached
        self.slow = slow


class Refused(Exception):  # noqa: N818
    """The server does not have the file, or has another one: retrying does not help."""


class Part:
    """What has arrived of a file, in ``<target>.part``, and beside it, in JSON, what it is a part of.

    Args:
        target: Where the whole file will be.
        url: Where it comes from; a part of another address is discarded.
        size: Published size in bytes, if known.
        terms: The licence, or where it is found, if known.

    Attributes:
        validator: The server's strong ETag or modification date, which tells whether the file has changed.
        size: Size of the whole in bytes, as the server or the caller says.
        sha256: The checksum that the server states, if it does.
    """

    def __init__(self, target: Path, url: str, size: int | None = None, terms: str | None = None) -> None:
        self.path = target.with_name(f"{target.name}.part")
        self.notes = target.with_name(f"{target.name}.part.json")
        self.name = target.name
        self.url = url
        self.published_size = size
        self.terms = terms
        self.announced = False
        self.validator: str | None = None
        self.size: int | None = None
        self.sha256: str | None = None
        noted = self._read_notes()
        if noted.get("url") == url:
            self.validator, self.size, self.sha256 = (noted.get(name) for name in NOTED[1:])
        else:
            self.discard()

    def _read_notes(self) -> dict[str, Any]:
        try:
            noted = json.loads(self.notes.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        kinds = {"url": str, "validator": str | None, "size": int | None, "sha256": str | None}
        whole = isinstance(noted, dict) and all(isinstance(noted.get(name), kind) for name, kind in kinds.items())
        return noted if whole else {}

    @property
    def length(self) -> int:
        """Bytes received so far."""
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def is_whole(self) -> bool:
        """Whether the file is complete."""
        return bool(self.size) and self.length == self.size

    def begin(self, size: int | None, validator: str | None, sha256: str | None) -> None:
        """Store what is being received, so that another process can resume after a kill."""
        self.size, self.validator, self.sha256 = size, validator, sha256
        text = json.dumps({name: getattr(self, name) for name in NOTED})
        self.notes.write_text(text, encoding="utf-8")

    def announce(self) -> None:
        """Say once what is downloaded: the address, the size, where to, the terms."""
        if self.announced:
            return
        self.announced = True
        size = "size unknown" if self.size is None else f"{self.size / 1e6:,.1f} MB"
        terms = f"; terms: {self.terms}" if self.terms else ""
        sys.stderr.write(f"downloading {self.url} ({size}) to {self.path.parent}{terms}\n")

    def discard(self) -> None:
        """Delete the received part."""
        self.path.unlink(missing_ok=True)
        self.notes.unlink(missing_ok=True)
        self.validator = self.size = self.sha256 = None

    def finish(self, target: Path) -> None:
        """Rename the part."""
        os.replace(self.path, target)
        self.notes.unlink(missing_ok=True)


def transfer(part: Part) -> None:
    """Transfer what is missing of a file.

    Raises:
        TransferCut: If the connection fails, ends early or is too slow; what has arrived is kept.
        Refused: If the server does not have the file, has one of another size than the published, sends more than it
            says, or redirects to an address that is not secure.
        OSError: If the part cannot be written.
    """
    headers = {"User-Agent": "sot-toolkit", "Accept-Encoding": "identity"}
    start = 0
    if part.validator and part.length:
        start = part.length
        headers |= {"Range": f"bytes={start}-", "If-Range": part.validator}
    redirects = _Redirects()
    response = _open(Request(part.url, headers=headers), redirects, part)
    with response:
        start, size = _span(response, start, part)
        if part.published_size is not None and size not in (None, part.published_size):
            part.discard()
            raise Refused(f"the server's file has {size} bytes, expected {part.published_size}")
        part.begin(size, _validator(response.headers), redirects.sha256 or _linked_sha256(response.headers))
        part.announce()
        bar = tqdm(
            total=size, initial=start, desc=part.name, unit="B", unit_scale=True, unit_divisor=1024, disable=None
        )
        with bar, part.path.open("ab" if start else "wb") as file:
            limit = size or part.published_size or LARGEST
            left, speed = limit - start, _Speed()
            while block := _read(response):
                left -= len(block)
                if left < 0:
                    break
                file.write(block)
                bar.update(len(block))
                speed.count(len(block))
            file.flush()
            os.fsync(file.fileno())
    if left < 0:
        part.discard()
        raise Refused(f"the server sends more than {limit} bytes")
    if size is not None and part.length != size:
        if part.length > size:
            part.discard()
        raise TransferCut(f"the connection ended after {part.length} of {size} bytes", reached=True)


class _Speed:
    """Watches the speed of a transfer."""

    def __init__(self) -> None:
        self.start, self.bytes = time.monotonic(), 0

    def count(self, size: int) -> None:
        """Count received bytes.

        Raises:
            TransferCut: If there were too few in the last window of time.
        """
        self.bytes += size
        seconds = time.monotonic() - self.start
        if seconds < WINDOW:
            return
        if self.bytes < SLOWEST * seconds:
            raise TransferCut(f"slower than {SLOWEST} bytes a second", reached=True, slow=True)
        self.start, self.bytes = time.monotonic(), 0


def is_secure(url: str) -> bool:
    """Return whether an address may be used: https; http on this machine, or where ``SOT_ALLOW_HTTP=1`` allows it."""
    parts = urlsplit(url)
    if parts.scheme == "http":
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        return local or os.environ.get("SOT_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
    return parts.scheme == "https" and bool(parts.hostname)


class _Redirects(HTTPRedirectHandler):
    """Follows redirections to secure addresses, and keeps the checksum that Hugging Face states on the way."""

    sha256: str | None = None

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if not is_secure(newurl):
            raise Refused(f"a redirect to {newurl.partition('?')[0]}, which is not https")
        self.sha256 = _linked_sha256(headers) or self.sha256
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: Request, redirects: _Redirects, part: Part) -> HTTPResponse:
    try:
        response: HTTPResponse = build_opener(redirects).open(request, timeout=TIMEOUT)
        return response
    except HTTPError as error:
        with error:
            if error.code == 416:  # nothing after the part: it is not of this file (a whole part asks for nothing)
                part.discard()
            if error.code in (416, *TRANSIENT):
                raise TransferCut(f"HTTP {error.code} {error.reason}", reached=True) from None
            raise Refused(f"HTTP {error.code} {error.reason}") from None
    except URLError as error:
        raise TransferCut(error.reason, reached=False) from None
    except (OSError, HTTPException) as error:
        raise TransferCut(error, reached=True) from None


def _read(response: HTTPResponse) -> bytes:
    try:
        return response.read1(BLOCK)
    except (OSError, HTTPException) as error:
        raise TransferCut(error, reached=True) from None


def _span(response: HTTPResponse, start: int, part: Part) -> tuple[int, int | None]:
    """Return the offset that the response starts at, and the size of the whole file."""
    if response.status != 206:
        length = response.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    same = _validator(response.headers) in (None, part.validator)
    if span is None or int(span[1]) != start or int(span[2]) != (part.size or int(span[2])) or not same:
        part.discard()
        raise TransferCut("the server continued with another file", reached=True)
    return start, int(span[2])


def _validator(headers: Message) -> str | None:
    etag = headers.get("ETag", "")
    return etag if etag.startswith('"') else headers.get("Last-Modified")


def _linked_sha256(headers: Message) -> str | None:
    etag = headers.get("X-Linked-ETag", "").strip('"')
    return etag if re.fullmatch("[0-9a-f]{64}", etag) else None
