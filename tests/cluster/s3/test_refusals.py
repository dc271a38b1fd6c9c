"""What is said when a store says no: one sentence, the place, what to change, and nothing secret."""

import socket

import pytest
from botocore.exceptions import ClientError

from cluster.errors import StoreRefused, StoreUnreachable
from cluster.s3.bucket import Bucket
from cluster.s3.config import S3Config
from cluster.s3.refusals import explained, passing
from tests.fakes_s3 import KEYS

CONFIG = S3Config(endpoint_url="http://store:9000")


def answer(code, status=400, **more):
    told = {"Error": {"Code": code, "Message": "SECRET in the store's words"}}
    told["ResponseMetadata"] = {"HTTPStatusCode": status, "HTTPHeaders": more}
    return ClientError(told, "GetObject")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (answer("NoSuchBucket", 404), StoreRefused, "http://store:9000 has no bucket 'b'; is its name right"),
        (answer("NoSuchKey", 404), FileNotFoundError, "s3://b/k does not exist"),
        (answer("AccessDenied", 403), StoreRefused, "s3:GetObject"),
        (answer("403", 403), StoreRefused, "access is denied to these credentials"),
        (answer("SignatureDoesNotMatch", 403), StoreRefused, "are they those of http://store:9000?"),
        (answer("ExpiredToken"), StoreRefused, "renew it and give the same command again"),
        (answer("PermanentRedirect", 301), StoreRefused, "in another region; set s3.region"),
        (
            answer("AuthorizationHeaderMalformed", 400, **{"x-amz-bucket-region": "eu-west-1"}),
            StoreRefused,
            "the bucket is in region eu-west-1; set s3.region",
        ),
        (answer("RequestTimeTooSkewed", 403), StoreRefused, "clock"),
        (answer("NotImplemented", 501), StoreRefused, "does not have this operation"),
        (answer("SomethingNew", 400), StoreRefused, "answers SomethingNew to GetObject"),
        (answer("SlowDown", 503), StoreUnreachable, "answers SlowDown again and again"),
        (answer("", 502), StoreUnreachable, "answers 502 again and again"),
        (ConnectionResetError(), StoreUnreachable, "gives no answer"),
    ],
)
def test_each_refusal_is_one_sentence_about_the_place(error, kind, said):
    found = explained(error, "s3://b/k", "read", CONFIG)
    assert type(found) is kind
    assert str(found).startswith("s3://b/k ")
    assert said in str(found)
    assert "SECRET" not in str(found)
    assert "\n" not in str(found)


def test_what_is_no_failure_of_a_store_passes_as_it_is():
    error = KeyError("x")
    assert explained(error, "s3://b/k", "read", CONFIG) is error
    assert not passing(error)


def test_a_write_and_a_listing_name_their_own_permission():
    said = {tried: str(explained(answer("AccessDenied"), "s3://b/k", tried, CONFIG)) for tried in ("written", "listed")}
    assert "s3:PutObject" in said["written"]
    assert "s3:ListBucket" in said["listed"]
    public = S3Config(anonymous=True)
    assert "without credentials (s3.anonymous)" in str(explained(answer("AccessDenied"), "s3://b/k", "read", public))


def test_a_bucket_that_is_not_there(store):
    with pytest.raises(
        StoreRefused, match=r"s3://nothing-here/ cannot be reached: http.* has no bucket 'nothing-here'"
    ):
        Bucket("nothing-here", store.config).greet()


def test_a_name_that_no_bucket_can_have(store):
    with pytest.raises(StoreRefused, match="'b!' is no name of a bucket"):
        Bucket("b!", store.config).greet()


def test_an_endpoint_where_nobody_listens_is_told_soon(store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = store.config.model_copy(update={"endpoint_url": f"http://127.0.0.1:{port}"})
    with pytest.raises(
        StoreUnreachable, match=rf"http://127\.0\.0\.1:{port} gives no answer .* is s3\.endpoint_url right"
    ):
        Bucket("b", nobody).greet()


def test_an_endpoint_that_speaks_something_else(store):
    store.proxy.fault("404 nothing", 10)
    with pytest.raises(StoreRefused, match="answers nothing to ListObjectsV2; look at the settings below s3"):
        Bucket(store.bucket, store.config).greet()


def test_whoever_may_not_list_may_still_be_allowed_the_rest(store):
    store.proxy.fault("403 AccessDenied", 1)
    Bucket(store.bucket, store.config).greet()
    store.proxy.fault("403 InvalidAccessKeyId", 1)
    with pytest.raises(StoreRefused, match="does not accept these credentials"):
        Bucket(store.bucket, store.config).greet()


def test_without_credentials_the_message_says_where_they_come_from(store, new_clients, monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name)
    with pytest.raises(StoreRefused, match=r"no complete AWS credentials .* s3\.profile.* s3\.anonymous: true"):
        Bucket(store.bucket, store.config).greet()
    Bucket(store.bucket, store.config.model_copy(update={"anonymous": True})).greet()


def test_a_profile_that_no_file_has(store):
    with pytest.raises(StoreRefused, match=r"s3\.profile is 'work', which no AWS config file of this machine has"):
        Bucket(store.bucket, store.config.model_copy(update={"profile": "work"})).greet()


def test_a_profile_of_the_config_files_is_taken(store, new_clients, monkeypatch, tmp_path):
    (tmp_path / "credentials").write_text("[work]\naws_access_key_id = WORKKEY\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in KEYS:
        monkeypatch.delenv(name)
    Bucket(store.bucket, store.config.model_copy(update={"profile": "work"})).greet()
    assert "WORKKEY" in store.proxy.seen[-1].signed


def test_a_session_token_goes_with_the_request_and_an_anonymous_one_is_not_signed(store):
    Bucket(store.bucket, store.config).greet()
    assert store.proxy.seen[-1].token == KEYS["AWS_SESSION_TOKEN"]
    Bucket(store.bucket, store.config.model_copy(update={"anonymous": True})).greet()
    assert store.proxy.seen[-1].signed == ""
