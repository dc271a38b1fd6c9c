"""Which kind of storage an output path means."""

from cluster.s3.address import is_s3
from cluster.s3.config import S3Config
from cluster.writing.s3_storage import S3Storage
from cluster.writing.storage import LocalStorage, Storage


def storage_at(path: str, s3: S3Config) -> Storage:
    return S3Storage(path, s3) if is_s3(path) else LocalStorage(path)
