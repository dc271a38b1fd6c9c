"""s3://bucket/key, as people write it. Keys are taken as they stand: no %, no dot and no double slash is special."""

from dataclasses import dataclass

from cluster.errors import PlanError

SCHEME = "s3://"


@dataclass(frozen=True, slots=True)
class Address:
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


def is_s3(path: str) -> bool:
    return path.startswith(SCHEME)


def parse(path: str) -> Address:
    bucket, _, key = path.removeprefix(SCHEME).partition("/")
    if not is_s3(path) or not bucket:
        raise PlanError(f"{path} names no bucket; an address in an object store is s3://BUCKET/KEY")
    return Address(bucket, key)
