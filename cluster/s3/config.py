"""How an object store is reached. Nothing secret is in here: credentials come from the standard AWS chain alone."""

from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from dllm_core.closed import Config

SECRET = "secret"  # type of an error whose value must not be shown


class S3Config(Config):
    endpoint_url: str = Field(default="", description="of an S3-compatible store, http(s)://HOST[:PORT]; empty is AWS")
    region: str = Field(default="", description="of the buckets; empty leaves it to the AWS environment")
    profile: str = Field(default="", description="of the AWS config files; empty leaves it to the AWS environment")
    path_style: bool = Field(default=False, description="bucket in the path, not in the host's name (MinIO, Ceph)")
    anonymous: bool = Field(default=False, description="send no credentials, for public buckets")

    @field_validator("endpoint_url")
    @classmethod
    def endpoint_is_an_address_without_credentials(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if "@" in parts.netloc:
            raise PydanticCustomError(
                SECRET, "holds a user or a password, which every record would repeat; leave them out"
            )
        if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment:
            raise ValueError("is no address of the form http(s)://HOST[:PORT]")
        return value.rstrip("/")

    @property
    def endpoint(self) -> str:
        """For messages."""
        return self.endpoint_url or "AWS"
