"""One bucket: listing, reading and small writes. Every failure leaves here as `refusals.explained` says it.

An etag identifies what an object holds at one moment. It is compared and never interpreted: whether it is a hash of
the bytes depends on how they were uploaded.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from cluster.s3.address import Address
from cluster.s3.client import client
from cluster.s3.config import S3Config
from cluster.s3.patience import persist
from cluster.s3.refusals import DENIED, TAKEN, code_of, explained, passing

Answer = TypeVar("Answer")

CHUNK = 1 << 20  # bytes taken at once from an answer
MARK = "driftline-writer"  # user metadata of what we write under a condition: a token of the one call


class Changed(OSError):
    """The object is not the one that was asked for any more."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as a listing or a HEAD tells it."""

    key: str
    size: int  # bytes
    etag: str  # without quotes
    mark: str = ""  # a HEAD's only


class Bucket:
    def __init__(self, name: str, config: S3Config) -> None:
        self.name, self.config = name, config

    def address(self, key: str = "") -> str:
        return str(Address(self.name, key))

    def greet(self) -> None:
        """Find out within seconds whether the endpoint answers and knows the bucket. Whoever may not list it may still
        be allowed what the job needs.
        """
        try:
            client(self.config, quick=True).list_objects_v2(Bucket=self.name, MaxKeys=1)
        except Exception as error:  # of whatever kind: botocore has no common base
            if code_of(error) not in DENIED:
                self._tell(error, "reached", "")

    def below(self, prefix: str) -> Iterator[Stored]:
        """Every object whose key begins so, by key; a thousand per request."""
        for page in self._pages(prefix):
            yield from map(_stored, page.get("Contents", ()))

    def folder(self, prefix: str) -> tuple[list[Stored], list[str]]:
        """What lies directly below a prefix that ends in `/`: objects, and prefixes of others."""
        objects, folders = list[Stored](), list[str]()
        for page in self._pages(prefix, Delimiter="/"):
            objects += map(_stored, page.get("Contents", ()))
            folders += [str(each["Prefix"]) for each in page.get("CommonPrefixes", ())]
        return objects, folders

    def find(self, key: str) -> Stored | None:
        try:
            answer = self.ask("head_object", "read", key)
        except FileNotFoundError:
            return None
        return Stored(key, int(answer["ContentLength"]), _etag(answer), answer.get("Metadata", {}).get(MARK, ""))

    def read(self, key: str) -> bytes:
        """All of a small object as it stands now; FileNotFoundError where there is none."""

        def read() -> bytes:
            with closing(client(self.config).get_object(Bucket=self.name, Key=key)["Body"]) as body:
                return bytes(body.read())

        return self.tried(read, "read", key)

    def tail(self, key: str, length: int) -> tuple[bytes, Stored]:
        """The last bytes, at most so many, and what they are the end of; FileNotFoundError where there is no object."""

        def read() -> tuple[bytes, Stored]:
            answer = client(self.config).get_object(Bucket=self.name, Key=key, Range=f"bytes=-{length}")
            with closing(answer["Body"]) as body:
                data = bytes(body.read())
            _, _, size = answer.get("ContentRange", "").rpartition("/")
            return data, Stored(key, int(size or len(data)), _etag(answer))

        try:
            return self.tried(read, "read", key)
        except _OutOfRange:  # an empty object has no last byte
            found = self.find(key)
            if found is None:
                raise FileNotFoundError(f"{self.address(key)} does not exist") from None
            return b"", found

    def get(self, key: str, start: int, stop: int, etag: str) -> bytes:
        """Bytes [start, stop) of the object that had this etag. Changed where it is another one, FileNotFoundError
        where there is none.
        """
        data = bytearray()
        self.stream(key, start, stop, etag, data.extend)
        return bytes(data)

    def stream(self, key: str, start: int, stop: int, etag: str, take: Callable[[bytes], None]) -> None:
        """As `get`, handed over piece by piece; what was handed over before an answer broke off is not asked for
        again.
        """
        at = start

        def read() -> None:
            nonlocal at
            if at == stop:
                return
            asked = {"Range": f"bytes={at}-{stop - 1}", "IfMatch": f'"{etag}"'}
            answer = client(self.config).get_object(Bucket=self.name, Key=key, **asked)
            with closing(answer["Body"]) as body:
                if answer["ContentLength"] != stop - at:
                    raise Changed(f"the store sends {answer['ContentLength']} bytes where {stop - at} were asked for")
                while piece := body.read(min(CHUNK, stop - at)):
                    take(piece)
                    at += len(piece)
                    if at == stop:
                        return
            raise ConnectionError("the answer broke off")

        self.tried(read, "read", key)

    def unfinished_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """(key, upload id) of what was begun in parts and not ended."""
        more: dict[str, str] = {}
        while True:
            page = self._page("list_multipart_uploads", prefix, more)
            yield from ((str(each["Key"]), str(each["UploadId"])) for each in page.get("Uploads", ()))
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def put(self, key: str, data: bytes) -> None:
        """Small, and whatever stood there before."""
        self.ask("put_object", "written", key, Body=data)

    def remove(self, key: str) -> None:
        self.ask("delete_object", "removed", key)

    def ask(self, operation: str, tried: str, key: str, **given: Any) -> Any:
        """One request about a key, until there is an answer."""
        return self.tried(
            lambda: getattr(client(self.config), operation)(Bucket=self.name, Key=key, **given), tried, key
        )

    def tried(self, action: Callable[[], Answer], what: str, key: str) -> Answer:
        try:
            return persist(action, passing)
        except Exception as error:
            code = code_of(error)
            if code in TAKEN:
                raise Changed("it is another object now: its etag has changed") from error
            if code in {"InvalidRange", "416"}:
                raise _OutOfRange("it is shorter now than it was") from error
            self._tell(error, what, key)

    def _tell(self, error: Exception, what: str, key: str) -> NoReturn:
        told = explained(error, self.address(key), what, self.config)
        if told is error:
            raise error
        raise told from error

    def _pages(self, prefix: str, **given: str) -> Iterator[Any]:
        more: dict[str, str] = {}
        while True:
            page = self._page("list_objects_v2", prefix, {**given, **more})
            yield page
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, operation: str, prefix: str, given: Mapping[str, str]) -> Any:
        def ask() -> Any:
            return getattr(client(self.config), operation)(Bucket=self.name, Prefix=prefix, **given)

        return self.tried(ask, "listed", prefix)


class _OutOfRange(Changed):
    """The range begins behind the end."""


def _stored(told: Any) -> Stored:
    return Stored(str(told["Key"]), int(told["Size"]), _etag(told))


def _etag(told: Any) -> str:
    return str(told["ETag"]).strip('"')
