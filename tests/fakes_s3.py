"""An object store for tests: moto's server, and before it a proxy that counts requests and does what networks do."""

import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from cluster.s3.client import client
from cluster.s3.config import S3Config

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrSECRETexample",
    "AWS_SESSION_TOKEN": "tokSECRET",
}


@dataclass
class Seen:
    """One request and how much of its answer was sent."""

    method: str
    path: str
    asked: str  # the Range header
    signed: str  # the Authorization header
    token: str  # of the session
    sent: int = 0  # bytes of the answer's body


@dataclass
class Fault:
    """What happens to a request that it matches.

    kind: a status and a code (`503 SlowDown`), answered without asking the server; `reset`, the connection is reset
    before the server is asked; `cut`, half of the answer's body; `lost`, the server acts and its answer never comes;
    `slow`, half a second before the answer.
    """

    kind: str
    times: int = 1
    where: Callable[[str, str], bool] = lambda method, path: True


@dataclass
class Proxy:
    """`server`: host and port of the store behind it."""

    server: tuple[str, int]
    seen: list[Seen] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    chaos: Callable[[], str] = lambda: ""  # a kind of fault for each request, or nothing
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, kind: str, times: int = 1, method: str = "", path: str = "") -> None:
        """path: what it contains."""
        self.faults.append(Fault(kind, times, lambda m, p: method in ("", m) and path in p))

    def next_fault(self, method: str, path: str) -> str:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.where(method, path):
                    fault.times -= 1
                    return fault.kind
            return self.chaos()

    def count(self, method: str, path: str = "") -> int:
        return sum(each.method == method and path in each.path for each in self.seen)

    def bytes_of(self, path: str) -> int:
        """That were sent of objects whose path contains this."""
        return sum(each.sent for each in self.seen if path in each.path and each.method == "GET")

    def clear(self) -> None:
        self.seen.clear()
        self.faults.clear()
        self.chaos = lambda: ""


def random_faults(seed: int, rate: float, *kinds: str) -> Callable[[], str]:
    dice = random.Random(seed)
    return lambda: dice.choice(kinds) if dice.random() < rate else ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def forward(self) -> None:
        asked = [self.headers.get(name, "") for name in ("Range", "Authorization", "X-Amz-Security-Token")]
        seen = Seen(self.command, unquote(self.path), *asked)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind = self.proxy.next_fault(seen.method, seen.path)
        self.proxy.seen.append(seen)
        if kind == "reset":
            self.hang_up()
        elif kind and kind[0].isdigit():
            self.refuse(*kind.split())
        else:
            status, headers, answer = self.ask(body)
            if kind == "slow":
                time.sleep(0.5)
            if kind == "lost":
                self.hang_up()
            else:
                # noted before it goes out: a client that has read all looks at once
                seen.sent = len(answer) // 2 if kind == "cut" else len(answer)
                self.answer(status, headers, answer, seen.sent)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

    def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        behind = HTTPConnection(*self.proxy.server, timeout=20.0)
        try:
            behind.request(self.command, self.path, body, dict(self.headers.items()))
            answer = behind.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            behind.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, part: int) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                self.send_header(name, value)
        told = dict((name.lower(), value) for name, value in headers).get("content-length")
        length = str(len(body)) if self.command != "HEAD" or told is None else told
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body[:part])
        self.close_connection |= part < len(body)

    def refuse(self, status: str, code: str, *more: str) -> None:
        told = "".join(f"<{name}>{value}</{name}>" for name, _, value in (each.partition("=") for each in more))
        body = f"<Error><Code>{code}</Code><Message>{code}</Message>{told}</Error>".encode()
        self.answer(
            int(status), [("Content-Type", "application/xml")], b"" if self.command == "HEAD" else body, len(body)
        )

    def hang_up(self) -> None:
        """The client sees a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that have hung up are no news."""


@contextmanager
def proxy_before(server: tuple[str, int]) -> Iterator[Proxy]:
    proxy = Proxy(server)
    handler = type("Handler", (_Handler,), {"proxy": proxy})
    with _Server(("127.0.0.1", 0), handler) as listening:
        proxy.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            listening.shutdown()
            thread.join()


@dataclass
class Store:
    """A bucket of one test, and the proxy that the code under test reaches it by."""

    bucket: str
    config: S3Config
    proxy: Proxy
    server: S3Config  # not by way of the proxy

    def path(self, key: str = "") -> str:
        return f"s3://{self.bucket}/{key}"

    def put(self, key: str, data: bytes = b"") -> str:
        """The object's address."""
        client(self.server).put_object(Bucket=self.bucket, Key=key, Body=data)
        return self.path(key)

    def get(self, key: str) -> bytes:
        return bytes(client(self.server).get_object(Bucket=self.bucket, Key=key)["Body"].read())

    def remove(self, key: str) -> None:
        client(self.server).delete_object(Bucket=self.bucket, Key=key)

    def names(self, prefix: str = "") -> list[str]:
        listed = client(self.server).list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [each["Key"] for each in listed.get("Contents", [])]

    def uploads(self) -> list[str]:
        """Keys of uploads in parts that were begun and not ended."""
        listed = client(self.server).list_multipart_uploads(Bucket=self.bucket)
        return [each["Key"] for each in listed.get("Uploads", [])]


_numbers = itertools.count(1)


def fresh_store(proxy: Proxy) -> Store:
    """With a bucket that nobody has used."""
    host, port = proxy.server
    behind = S3Config(endpoint_url=f"http://{host}:{port}", path_style=True)
    config = S3Config(endpoint_url=f"http://127.0.0.1:{proxy.port}", path_style=True)
    store = Store(f"bucket-{next(_numbers)}", config, proxy, behind)
    client(behind).create_bucket(Bucket=store.bucket)
    proxy.clear()
    return store
