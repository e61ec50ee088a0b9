"""An S3 of the tests' own: moto's server in a process of its own, which knows whom it lets do what.

As a program it is that server.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

if TYPE_CHECKING:
    import pytest

_ROOT = {"aws_access_key_id": "root", "aws_secret_access_key": "root", "region_name": "us-east-1"}
_FAULTS = "/faults"
_READ = ("s3:ListBucket", "s3:GetObject")
_WRITE = (*_READ, "s3:PutObject", "s3:DeleteObject")

_LISTED = 20
"""So many objects it names at once; Amazon's names 1,000."""

NOWHERE = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""Environment in which a client finds no credentials but those that it is given."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """Somebody whom the store knows.

    :param url: of the store.
    """

    url: str
    key: str
    secret: str

    def environment(self) -> dict[str, str]:
        """Return what commands, tasks and Spark's workers take their credentials from."""
        return NOWHERE | {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def connection(self) -> str:
        """Return a connection of Airflow, as its environment names one."""
        extra = urlencode({"endpoint_url": self.url, "region_name": "us-east-1"})
        return f"aws://{quote(self.key, safe='')}:{quote(self.secret, safe='')}@/?{extra}"


def forget() -> None:
    """Let credentials be read anew, which are kept as long as a process lives."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()


def hide(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a package be missing until a test is over, also where this process has opened a store by it."""
    from fsspec.registry import _registry

    monkeypatch.setitem(sys.modules, package, None)
    for protocol, kind in list(_registry.items()):
        if kind.__module__.partition(".")[0] == package:
            monkeypatch.delitem(_registry, protocol)


class ObjectStore:
    """The store, and what its owner may do with it.

    :param process: a :class:`queuekeeper.embedded.process.ManagedProcess` of the store's own.
    """

    def __init__(self, process: Any) -> None:
        import boto3

        self._process, self._names = process, count(1)
        process.start([sys.executable, __file__], environment={"MOTO_S3_DEFAULT_MAX_KEYS": str(_LISTED)})
        found: list[str] = []

        def is_up() -> bool:
            found.extend(re.findall(r"Running on (http://\S+)", process.log_path.read_text()))
            return bool(found)

        process.wait_ready(is_up, timeout_s=60)
        self.url = found[0]
        self._iam = boto3.client("iam", endpoint_url=self.url, **_ROOT)
        self.owner = self._account("owner", ("s3:*",))
        self.writer = self._account("writer", _WRITE)
        self.reader = self._account("reader", _READ)
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.owner.key,
            aws_secret_access_key=self.owner.secret,
            region_name="us-east-1",
        )
        # From now on it asks who somebody is.
        self._post("/moto-api/reset-auth", b"0")

    def stop(self) -> None:
        """End it, with all that it keeps."""
        self._process.stop()

    def bucket(self) -> str:
        """Make a bucket, and return its name."""
        name = f"bucket-{next(self._names)}"
        self.client.create_bucket(Bucket=name)
        return name

    def buckets(self) -> set[str]:
        """Return the names of all buckets."""
        return {each["Name"] for each in self.client.list_buckets()["Buckets"]}

    def objects(self, bucket: str) -> list[str]:
        """Return the keys of all objects of a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    @contextmanager
    def answering(
        self, status: int, code: str, *, method: str = "PUT", after: int = 0, times: int = 1_000
    ) -> Iterator[None]:
        """Answer so many requests of a method with an error in a block.

        :param after: so many are let through first.
        """
        fault = {"status": status, "code": code, "method": method, "after": after, "times": times}
        self._post(_FAULTS, json.dumps(fault).encode())
        try:
            yield
        finally:
            self._post(_FAULTS, b"null")

    def _account(self, name: str, actions: tuple[str, ...]) -> Account:
        self._iam.create_user(UserName=name)
        made = self._iam.create_access_key(UserName=name)["AccessKey"]
        statement = {"Effect": "Allow", "Action": actions, "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self._iam.put_user_policy(UserName=name, PolicyName="objects", PolicyDocument=policy)
        return Account(url=self.url, key=made["AccessKeyId"], secret=made["SecretAccessKey"])

    def _post(self, path: str, content: bytes) -> None:
        request = Request(f"{self.url}{path}", data=content, headers={"Content-Type": "text/plain"})
        with urlopen(request) as answer:
            answer.read()


def _refusing(app: Callable[..., Any]) -> Callable[..., Any]:
    """Return the server, which refuses what it is told to refuse."""
    told: dict[str, Any] = {}

    def answer(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Any:
        if environ["PATH_INFO"] == _FAULTS:
            told.clear()
            told.update(json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))) or {})
            start_response("204 No Content", [])
            return []
        if told and environ["REQUEST_METHOD"] == told["method"]:
            if told["after"]:
                told["after"] -= 1
            elif told["times"]:
                told["times"] -= 1
                body = f"<Error><Code>{told['code']}</Code><Message>{told['code']}</Message></Error>".encode()
                start_response(f"{told['status']} Refused", [("Content-Type", "application/xml")])
                return [body]
        return app(environ, start_response)

    return answer


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    app = _refusing(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    _serve()
