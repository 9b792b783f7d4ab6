"""An HTTP server in a thread, with the faults that downloads meet."""

import contextlib
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Serves bytes by path.

    Attributes:
        files: Bytes by path.
        etag: Sent with files, and compared to If-Range; None to send none.
        ranges: Whether the Range header is heeded.
        cuts: For the requests to come, after how many bytes each is cut; None is not cut.
        statuses: For the requests to come, a status to fail with; None is answered.
        stall: While set, a cut connection stays open, silent.
        headers: Headers by path, sent with it.
        redirects: Path to redirect to by path.
        unsized: Whether files are sent without their size.
        log: (path, Range header, bytes of body sent) of each answered request.
    """

    def __init__(self):
        self.files, self.headers, self.redirects = {}, {}, {}
        self.etag = '"one"'
        self.ranges, self.unsized = True, False
        self.cuts, self.statuses, self.log = [], [], []
        self.stall = threading.Event()

    @property
    def ranges_asked(self):
        return [asked for _, asked, _ in self.log]

    @property
    def sent(self):
        return [count for _, _, count in self.log]


class Handler(BaseHTTPRequestHandler):
    faults: FileServer

    def log_message(self, *args):
        pass

    def do_GET(self):
        status = self.faults.statuses.pop(0) if self.faults.statuses else None
        if status or self.path not in self.faults.files | self.faults.redirects:
            self.faults.log.append((self.path, self.headers["Range"], 0))
            return self.send_error(status or 404)
        if self.path in self.faults.redirects:
            return self._head(302, {"Location": self.faults.redirects[self.path], "Content-Length": 0})
        return self._file(self.faults.files[self.path])

    def _head(self, status, headers):
        self.send_response(status)
        for name, value in (headers | self.faults.headers.get(self.path, {})).items():
            self.send_header(name, str(value))
        self.end_headers()

    def _file(self, body):
        headers = {"ETag": self.faults.etag} if self.faults.etag else {}
        asked = self.headers["Range"]
        start, status = 0, 200
        if asked and self.faults.ranges and self.headers["If-Range"] in (None, self.faults.etag):
            start, status = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]), 206
            if start >= len(body):
                self.faults.log.append((self.path, asked, 0))
                return self._head(416, {"Content-Range": f"bytes */{len(body)}", "Content-Length": 0})
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        cut = self.faults.cuts.pop(0) if self.faults.cuts else None
        part = body[start:] if cut is None else body[start : start + cut]
        self.faults.log.append((self.path, asked, len(part)))  # before it is sent: the next request may overtake
        self._head(status, headers | ({} if self.faults.unsized else {"Content-Length": len(body) - start}))
        with contextlib.suppress(ConnectionError):
            self.wfile.write(part)
        while cut is not None and self.faults.stall.is_set():
            time.sleep(0.02)
        self.close_connection = True
        return None


@contextlib.contextmanager
def serve():
    """Run a `FileServer` at its attribute ``address``."""
    server = FileServer()
    handler = type("FaultyHandler", (Handler,), {"faults": server})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        server.address = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.stall.clear()
            http.shutdown()
            thread.join()
