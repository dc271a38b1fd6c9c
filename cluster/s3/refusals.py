"""What goes wrong between us and a store, in one sentence that names the place and what to change.

Three kinds: it may pass (asked again, then StoreUnreachable), it will not (StoreRefused), there is no such object
(FileNotFoundError). Messages of the store itself are not repeated: some hold parts of the request.
"""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoAuthTokenError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from cluster.errors import StoreRefused, StoreUnreachable
from cluster.s3.config import S3Config

NEEDED = {  # what was tried -> the permission for it
    "read": "s3:GetObject",
    "listed": "s3:ListBucket",
    "written": "s3:PutObject",
    "removed": "s3:DeleteObject",
}
GONE = {"NoSuchKey", "NoSuchUpload", "404"}
TAKEN = {"PreconditionFailed", "412"}
RACING = {"ConditionalRequestConflict", "OperationAborted", "409"}
THROTTLED = {
    "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "RequestTimeout", "429",
    "BadDigest",  # damaged on the way
}  # fmt: skip
DENIED = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "403"}
UNKNOWN_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity", "NotSignedUp"}
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "RequestExpired"}
ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307"}
NO_ANSWER = (HTTPClientError, BotoConnectionError, IncompleteReadError, HTTPError, ConnectionError, TimeoutError)
NO_CREDENTIALS = (
    NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, NoAuthTokenError, TokenRetrievalError,
    SSOError,
)  # fmt: skip


def code_of(error: Exception) -> str:
    """The store's word for it; empty where it did not answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def passing(error: Exception) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, SSLError):
        return False  # a certificate that does not fit fits no better in a second
    if isinstance(error, NO_ANSWER):
        return True
    code, status = code_of(error), _status(error)
    return code in THROTTLED | RACING or (status >= 500 and status != 501)


def explained(error: Exception, place: str, tried: str, config: S3Config) -> Exception:
    """place: the address; tried: what was to be done to it, a participle."""
    why = _reason(error, place.removeprefix("s3://").partition("/")[0], tried, config)
    if why is None:
        return error
    if code_of(error) in GONE:
        return FileNotFoundError(f"{place} {why}")
    kind = StoreUnreachable if passing(error) else StoreRefused
    return kind(f"{place} cannot be {tried}: {why}")


def _reason(error: Exception, bucket: str, tried: str, config: S3Config) -> str | None:
    """None = no error of a store."""
    if isinstance(error, ClientError):
        return _answered(error, bucket, tried, config)
    if isinstance(error, NO_CREDENTIALS):
        return (
            f"no complete AWS credentials were found ({type(error).__name__}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or s3.profile, on every node, or give the nodes a role; for a public bucket set "
            "s3.anonymous: true"
        )
    if isinstance(error, ProfileNotFound):
        return f"s3.profile is {config.profile!r}, which no AWS config file of this machine has"
    if isinstance(error, ParamValidationError):
        return f"{bucket!r} is no name of a bucket, or the key is too long"
    if isinstance(error, ResponseParserError):
        return f"what {config.endpoint} answers is not S3; is s3.endpoint_url right?"
    if isinstance(error, NO_ANSWER):
        return (
            f"{config.endpoint} gives no answer ({type(error).__name__}); is s3.endpoint_url right, and is the store "
            "up and within reach of this machine?"
        )
    if isinstance(error, BotoCoreError | ValueError):
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}; look at the settings below s3"
    return None


def _answered(error: ClientError, bucket: str, tried: str, config: S3Config) -> str:
    code = code_of(error)
    if code == "NoSuchBucket":
        return f"{config.endpoint} has no bucket {bucket!r}; is its name right, and s3.endpoint_url?"
    if code in GONE:
        return "does not exist"
    if code in DENIED:
        whom = "without credentials (s3.anonymous)" if config.anonymous else "to these credentials"
        return f"access is denied {whom}; the bucket's owner must allow {NEEDED.get(tried, 'it')}, or take others"
    if code in UNKNOWN_KEYS:
        return f"the store does not accept these credentials ({code}); are they those of {config.endpoint}?"
    if code in EXPIRED:
        return f"the session of these credentials has ended ({code}); renew it and give the same command again"
    if code in ELSEWHERE:
        region = _region(error.response)
        return f"the bucket is in {f'region {region}' if region else 'another region'}; set s3.region"
    if code == "RequestTimeTooSkewed":
        return "the clock of this machine is wrong by more than the store allows; set it"
    if _status(error) == 501 or code == "NotImplemented":
        return f"{config.endpoint} does not have this operation ({error.operation_name})"
    if passing(error):
        return f"{config.endpoint} answers {code or _status(error)} again and again; give the same command again later"
    return (
        f"{config.endpoint} answers {code or _status(error)} to {error.operation_name}; look at the settings below s3"
    )


def _status(error: Exception) -> int:
    known = error.response.get("ResponseMetadata", {}) if isinstance(error, ClientError) else {}
    return int(known.get("HTTPStatusCode", 0))


def _region(answer: Mapping[str, Any]) -> str:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return str(answer.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region") or "")
