"""The first word with each store: whether it answers at all, within seconds. Later on, when it has, we are patient."""

from collections.abc import Iterable

from cluster.errors import StoreRefused, StoreUnreachable
from cluster.s3.address import is_s3, parse
from cluster.s3.bucket import Bucket
from cluster.s3.config import S3Config


def greet_stores(paths: Iterable[str], config: S3Config) -> None:
    """paths: those that are no address in a store are passed over. StoreRefused: from the start, an endpoint that does
    not answer is taken for a wrong one.
    """
    for bucket in dict.fromkeys(parse(path).bucket for path in paths if is_s3(path)):
        try:
            Bucket(bucket, config).greet()
        except StoreUnreachable as error:
            raise StoreRefused(str(error)) from error
