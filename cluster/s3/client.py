"""boto3 clients: one per settings and process, for all threads."""

import threading

import boto3
from botocore import UNSIGNED
from botocore.client import BaseClient
from botocore.config import Config as BotoConfig
from botocore.exceptions import BotoCoreError

from cluster.s3.config import S3Config
from cluster.s3.refusals import explained

ATTEMPTS = 5  # of each request, with botocore's pauses in between
CONNECTIONS = 40  # kept open: a worker has up to 32 shards in hand
CONNECT_SECONDS, ANSWER_SECONDS = 10, 60

_clients: dict[tuple[S3Config, bool], BaseClient] = {}
_making = threading.Lock()  # boto3 sessions are not made by two threads at once


def client(config: S3Config, quick: bool = False) -> BaseClient:
    """quick: gives up after two attempts, to find out whether the endpoint answers at all. StoreRefused where the
    settings contradict the AWS config files.
    """
    with _making:
        if (config, quick) not in _clients:
            _clients[config, quick] = _made(config, quick)
        return _clients[config, quick]


def forget_clients() -> None:
    """The next clients look for credentials anew."""
    with _making:
        for made in _clients.values():
            made.close()
        _clients.clear()


def _made(config: S3Config, quick: bool) -> BaseClient:
    settings = BotoConfig(
        retries={"mode": "standard", "total_max_attempts": 2 if quick else ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        connect_timeout=CONNECT_SECONDS,
        read_timeout=CONNECT_SECONDS if quick else ANSWER_SECONDS,
        s3={"addressing_style": "path" if config.path_style else "auto"},
        signature_version=UNSIGNED if config.anonymous else None,
        # stores that are not AWS's often know nothing of newer checksums; uploads carry an MD5, which all know
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = boto3.session.Session(profile_name=config.profile or None, region_name=config.region or None)
        return session.client("s3", endpoint_url=config.endpoint_url or None, config=settings)
    except (BotoCoreError, ValueError) as error:
        raise explained(error, "object storage", "reached", config) from error
