"""Objects that are made once, and whole: a write under a condition on what stands there.

    create    If-None-Match: *     only where nothing stands
    exchange  If-Match: <etag>     only in place of the object that was seen

A store answers 412 where the condition does not hold. It answers so, too, to the second try of a write whose first
try worked and whose reply was lost; so every call marks its object with a token, and a 412 is followed by a look at
whose object stands there. Files above PART bytes go up in parts, become visible at the last request, under the same
condition, and leave no parts behind when it is refused.
"""

import base64
import contextlib
import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.errors import StoreError, StoreUnreachable
from cluster.s3.bucket import MARK, Bucket, Changed
from cluster.s3.patience import TRIES

PART = 64 << 20  # bytes; AWS takes 5 MiB to 5 GiB, and 10,000 parts: 640 GB at this size


class Uploader:
    def __init__(self, bucket: Bucket, part: int = PART) -> None:
        self.bucket, self.part = bucket, part

    def create(self, key: str, source: Path) -> bool:
        """False = an object of somebody else has this key."""
        for _ in range(TRIES):
            token = secrets.token_hex(16)
            if self._sent(key, source, token, {"IfNoneMatch": "*"}):
                return True
            if (found := self.bucket.find(key)) is not None:
                return found.mark == token
        raise StoreUnreachable(f"{self.bucket.address(key)} cannot be written: other writers keep getting in the way")

    def exchange(self, key: str, source: Path, etag: str) -> bool:
        """False = the object with this etag is not there any more."""
        token = secrets.token_hex(16)
        if self._sent(key, source, token, {"IfMatch": f'"{etag}"'}):
            return True
        found = self.bucket.find(key)
        return found is not None and found.mark == token

    def abort_below(self, prefix: str) -> None:
        """Drop uploads that were begun below a prefix and never ended; only while nobody else uploads there."""
        with contextlib.suppress(StoreError):  # not everybody may list them
            for key, upload in list(self.bucket.unfinished_uploads(prefix)):
                self._abort(key, upload)

    def _sent(self, key: str, source: Path, token: str, condition: Mapping[str, str]) -> bool:
        """False = the condition does not hold, or the upload is not there any more."""
        try:
            if source.stat().st_size <= self.part:
                data = source.read_bytes()
                self._ask("put_object", key, **_body(data), Metadata={MARK: token}, **condition)
            else:
                self._in_parts(key, source, token, condition)
        except (Changed, FileNotFoundError):
            if not source.exists():
                raise
            return False
        return True

    def _in_parts(self, key: str, source: Path, token: str, condition: Mapping[str, str]) -> None:
        begun = self._ask("create_multipart_upload", key, Metadata={MARK: token})["UploadId"]
        try:
            parts = list[dict[str, object]]()
            with open(source, "rb") as file:
                while data := file.read(self.part):
                    number = len(parts) + 1
                    sent = self._ask("upload_part", key, UploadId=begun, PartNumber=number, **_body(data))
                    parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            upload = {"Parts": parts}
            self._ask("complete_multipart_upload", key, UploadId=begun, MultipartUpload=upload, **condition)
        except BaseException:
            self._abort(key, begun)
            raise

    def _abort(self, key: str, upload: str) -> None:
        with contextlib.suppress(FileNotFoundError, StoreError):  # gone, or for the bucket's rules
            self.bucket.ask("abort_multipart_upload", "removed", key, UploadId=upload)

    def _ask(self, operation: str, key: str, **given: Any) -> Any:
        return self.bucket.ask(operation, "written", key, **given)


def _body(data: bytes) -> dict[str, Any]:
    digest = hashlib.md5(data, usedforsecurity=False).digest()
    return {"Body": data, "ContentMD5": base64.b64encode(digest).decode()}
