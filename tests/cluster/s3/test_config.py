"""Settings of object stores: addresses, and no secrets."""

import pytest
from pydantic import ValidationError

from cluster.config import JobConfig
from cluster.errors import PlanError
from cluster.s3.address import Address, is_s3, parse
from cluster.s3.config import S3Config
from dllm_core.errors import ConfigError
from jobs.settings import configured


def test_an_address_is_a_bucket_and_a_key_as_it_stands():
    assert parse("s3://b/a b/%20//c=1/") == Address("b", "a b/%20//c=1/")
    assert str(Address("b", "k/l")) == "s3://b/k/l"
    assert parse("s3://b").key == ""
    assert not is_s3("/data/s3://b")
    for path in ("s3://", "s3:///key"):
        with pytest.raises(PlanError, match="names no bucket"):
            parse(path)


@pytest.mark.parametrize("url", ["store:9000", "ftp://store", "http://", "http://store/?secret=1"])
def test_an_endpoint_is_an_address(url):
    with pytest.raises(ValidationError, match=r"is no address of the form http\(s\)://HOST"):
        S3Config(endpoint_url=url)


def test_a_password_in_an_endpoint_is_refused_and_not_repeated():
    with pytest.raises(ConfigError, match=r"s3\.endpoint_url: holds a user or a password") as caught:
        configured(JobConfig, {"s3": {"endpoint_url": "https://me:hunter2@store"}}, [])
    assert "hunter2" not in str(caught.value)


def test_there_is_no_setting_for_a_secret_and_none_is_repeated():
    for file, flags in (
        ({"s3": {"secret_access_key": "hunter2"}}, []),
        ({}, ["--s3.secret_access_key", "hunter2"]),
        ({}, ["--s3.secret_access_key=hunter2"]),
    ):
        with pytest.raises(ConfigError, match="no such setting") as caught:
            configured(JobConfig, file, flags)
        assert "hunter2" not in str(caught.value)


def test_messages_name_aws_where_no_endpoint_is_given():
    assert S3Config().endpoint == "AWS"
    assert S3Config(endpoint_url="http://store:9000/").endpoint == "http://store:9000"
