"""A web server for tests, with the faults of real ones."""

import hashlib
import http.server
import threading
from contextlib import contextmanager


class Files:
    """What a server holds, and how it misbehaves.

    Attributes:
        content: Bytes by path.
        faults: By path, one per request: ("break", n) ends the connection after n bytes, ("busy", code, header) answers
            with a status, ("claim", n) says that there are n bytes more. The last one stays if it is in ``always``.
        always: Paths whose last fault never goes.
        ranges: Whether parts are served.
        asked: (path, Range header) of every request.
    """

    def __init__(self):
        self.content, self.faults, self.always, self.ranges, self.asked = {}, {}, set(), True, []
        self.address = ""
        self.pace = threading.Event()
        self.pace.set()

    def fault(self, path):
        left = self.faults.get(path, [])
        if not left:
            return ("none",)
        return left[0] if path in self.always and len(left) == 1 else left.pop(0)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        files = self.server.files
        files.asked.append((self.path, self.headers.get("Range")))
        files.pace.wait(30)
        fault = files.fault(self.path)
        if fault[0] == "busy" or self.path not in files.content:
            self.send_response(fault[1] if fault[0] == "busy" else 404)
            for name, value in fault[2:]:
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._send(files, files.content[self.path], fault)

    def _send(self, files, content, fault):
        tag = f'"{hashlib.sha1(content).hexdigest()}"'
        asked, start = self.headers.get("Range"), 0
        if files.ranges and asked and self.headers.get("If-Range", tag) == tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        claimed = len(content) + (fault[1] if fault[0] == "claim" else 0)
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{claimed}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{claimed - 1}/{claimed}")
        if files.ranges:
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(claimed - start))
        self.end_headers()
        end = start + fault[1] if fault[0] == "break" else len(content)
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *_):
        """Keep quiet."""


@contextmanager
def serving():
    """Yield `Files` that are served at its ``address``."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files = Files()
        server.files.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.files
        finally:
            server.files.pace.set()
            server.shutdown()
            thread.join()
