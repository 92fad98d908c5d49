"""Errors of storage clients as Python's own: made with the clients' real classes, where they are installed."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elmo_store.errors import BucketNotFoundError
from elmo_store.storage.failures import is_transient, translate_error
from elmo_store.storage.root import Root

WHERE = "bucket/a/b"


def raised(module: str, make: Callable[[Any], Exception]) -> Exception:
    return make(
        pytest.importorskip(module, reason=f"{module} is not installed: pip install '.[all]'")
    )


def boto(code: str, status: int) -> Callable[[Any], Exception]:
    answer = {
        "Error": {"Code": code, "Message": f"of {code}"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return lambda module: module.ClientError(answer, "GetObject")


def s3fs(code: str, status: int) -> Callable[[Any], Exception]:
    """As s3fs raises it: Python's own for some codes, the client's behind it."""

    def make(module: Any) -> Exception:
        translated: Exception = module.translate_boto_error(
            raised("botocore.exceptions", boto(code, status))
        )
        return translated

    return make


def aiohttp_status(status: int) -> Callable[[Any], Exception]:
    request = SimpleNamespace(real_url="https://host/a?sig=secret")
    return lambda module: module.ClientResponseError(request, (), status=status, message="said")


def azure_status(status: int, kind: str = "HttpResponseError") -> Callable[[Any], Exception]:
    def make(module: Any) -> Exception:
        error: Exception = getattr(module, kind)("said")
        error.status_code = status  # type: ignore[attr-defined]
        return error

    return make


def obstore(kind: str, text: str) -> Callable[[Any], Exception]:
    url = "https://s3/bucket/a/b?X-Amz-Signature=secret"
    return lambda module: getattr(module, kind)(
        f"Generic S3 error: Error performing GET {url} in 1ms - {text}"
    )


def body(code: str, status: str) -> str:
    return f"Server returned non-2xx status code: {status}: <?xml?><Error><Code>{code}</Code><Message>of {code}</Message></Error>"


CASES: list[tuple[str, Callable[[Any], Exception], type[OSError], str]] = [
    (
        "botocore.exceptions",
        lambda m: m.EndpointConnectionError(endpoint_url="http://s3"),
        ConnectionError,
        "http://s3",
    ),
    (
        "botocore.exceptions",
        lambda m: m.ReadTimeoutError(endpoint_url="http://s3"),
        ConnectionError,
        "http://s3",
    ),
    (
        "botocore.exceptions",
        lambda m: m.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        ConnectionError,
        "look at",
    ),
    (
        "botocore.exceptions",
        lambda m: m.NoCredentialsError(),
        PermissionError,
        "check the credentials",
    ),
    (
        "botocore.exceptions",
        lambda m: m.UnauthorizedSSOTokenError(),
        PermissionError,
        "expired .* renew",
    ),
    ("botocore.exceptions", boto("SlowDown", 503), ConnectionError, "SlowDown"),
    ("botocore.exceptions", boto("InvalidArgument", 400), OSError, "InvalidArgument"),
    ("s3fs.errors", s3fs("AccessDenied", 403), PermissionError, "denied .*AccessDenied"),
    ("s3fs.errors", s3fs("ExpiredToken", 400), PermissionError, "expired .* renew"),
    ("s3fs.errors", s3fs("400", 400), PermissionError, "expired are one reason"),
    ("s3fs.errors", s3fs("NoSuchBucket", 404), BucketNotFoundError, "no bucket bucket .*make it"),
    ("s3fs.errors", s3fs("NoSuchKey", 404), FileNotFoundError, WHERE),
    (
        "s3fs.errors",
        s3fs("NoSuchUpload", 404),
        OSError,
        "NoSuchUpload",
    ),  # the answer to its end was lost: put anew
    ("s3fs.errors", s3fs("ServiceUnavailable", 503), ConnectionError, "look at"),
    (
        "obstore.exceptions",
        obstore("GenericError", "HTTP error: error sending request"),
        ConnectionError,
        "error sending",
    ),
    (
        "obstore.exceptions",
        obstore("GenericError", body("SlowDown", "503 Service Unavailable")),
        ConnectionError,
        "SlowDown",
    ),
    (
        "obstore.exceptions",
        obstore("PermissionDeniedError", body("AccessDenied", "403 Forbidden")),
        PermissionError,
        "denied",
    ),
    (
        "obstore.exceptions",
        obstore("GenericError", body("ExpiredToken", "400 Bad Request")),
        PermissionError,
        "renew",
    ),
    (
        "obstore.exceptions",
        obstore("NotFoundError", body("NoSuchBucket", "404 Not Found")),
        BucketNotFoundError,
        "make it",
    ),
    (
        "obstore.exceptions",
        obstore("NotFoundError", body("NoSuchKey", "404 Not Found")),
        FileNotFoundError,
        WHERE,
    ),
    (
        "obstore.exceptions",
        obstore("AlreadyExistsError", body("PreconditionFailed", "412")),
        FileExistsError,
        WHERE,
    ),
    ("aiohttp", lambda m: m.ServerDisconnectedError(), ConnectionError, "ServerDisconnected"),
    ("aiohttp", lambda m: m.ClientPayloadError("cut"), ConnectionError, "cut"),
    ("aiohttp", aiohttp_status(503), ConnectionError, "503"),
    ("aiohttp", aiohttp_status(403), PermissionError, "denied"),
    ("aiohttp", aiohttp_status(404), FileNotFoundError, WHERE),
    (
        "gcsfs.retry",
        lambda m: m.HttpError({"code": 503, "message": "said"}),
        ConnectionError,
        "said",
    ),
    (
        "gcsfs.retry",
        lambda m: m.HttpError({"code": 401, "message": "said"}),
        PermissionError,
        "denied",
    ),
    ("google.auth.exceptions", lambda m: m.TransportError("said"), ConnectionError, "said"),
    (
        "google.auth.exceptions",
        lambda m: m.RefreshError("invalid_grant"),
        PermissionError,
        "expired .*invalid_grant",
    ),
    (
        "google.auth.exceptions",
        lambda m: m.DefaultCredentialsError("none"),
        PermissionError,
        "check the credentials",
    ),
    ("google.api_core.exceptions", lambda m: m.ServiceUnavailable("said"), ConnectionError, "said"),
    ("google.api_core.exceptions", lambda m: m.Forbidden("said"), PermissionError, "denied"),
    ("google.api_core.exceptions", lambda m: m.NotFound("said"), FileNotFoundError, WHERE),
    ("azure.core.exceptions", lambda m: m.ServiceRequestError("said"), ConnectionError, "said"),
    ("azure.core.exceptions", lambda m: m.IncompleteReadError("said"), ConnectionError, "said"),
    ("azure.core.exceptions", azure_status(503), ConnectionError, "said"),
    ("azure.core.exceptions", azure_status(403), PermissionError, "denied"),
    (
        "azure.core.exceptions",
        azure_status(400, "ClientAuthenticationError"),
        PermissionError,
        "denied",
    ),
    ("azure.core.exceptions", azure_status(404, "ResourceNotFoundError"), FileNotFoundError, WHERE),
    (
        "builtins",
        lambda _: EOFError(),
        ConnectionError,
        "EOFError",
    ),  # paramiko's for a connection that is gone
    ("builtins", lambda _: TimeoutError(), ConnectionError, "TimeoutError"),
    ("builtins", lambda _: OSError("Forbidden: b/bucket/o"), PermissionError, "denied"),  # gcsfs'
]


@pytest.mark.parametrize(("module", "make", "kind", "says"), CASES)
def test_a_client_s_error_is_python_s_own_on_one_line(
    module: str, make: Callable[[Any], Exception], kind: type[OSError], says: str
) -> None:
    error = translate_error(raised(module, make), WHERE)
    assert type(error) is kind
    assert is_transient(error) is (kind in (ConnectionError, OSError))
    with pytest.raises(OSError, match=says):
        raise error
    assert WHERE in str(error) or kind is BucketNotFoundError
    assert "secret" not in str(error)
    assert "\n" not in str(error)


def test_what_is_behind_a_missing_file_decides_and_a_put_that_finds_nothing_finds_no_bucket() -> (
    None
):
    missing = FileNotFoundError(
        "http://host/a"
    )  # fsspec's HTTP client takes every failure of a look for that
    missing.__cause__ = raised("aiohttp", aiohttp_status(503))
    assert type(translate_error(missing, "http://host/a")) is ConnectionError
    assert type(translate_error(FileNotFoundError(WHERE), WHERE)) is FileNotFoundError
    assert type(translate_error(FileNotFoundError(WHERE), WHERE, put=True)) is BucketNotFoundError
    assert (
        type(translate_error(raised("s3fs.errors", s3fs("NoSuchUpload", 404)), WHERE, put=True))
        is OSError
    )


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), KeyError("x"), OSError(errno.ENOSPC, "full"), PermissionError(errno.EACCES, "denied", "/a"),
     FileNotFoundError(errno.ENOENT, "gone", "/a"), FileExistsError("a"), BucketNotFoundError("a")],
)  # fmt: skip
def test_what_is_no_client_s_stays(error: Exception) -> None:
    assert translate_error(error, WHERE, put=True) is error


def test_no_client_is_loaded_for_it(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom elmo_store.storage.root import Root\nfrom elmo_store.storage.failures import translate_error\n"
        f"Root({str(tmp_path)!r}).put('a', b'')\ntranslate_error(TimeoutError(), 'a')\n"
        "print([name for name in ('botocore', 'aiohttp', 'azure.core', 'gcsfs', 'obstore', 'paramiko') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_every_call_of_a_root_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a filesystem returns errors in the place of bytes; what its methods call of their own is not told."""
    from fsspec.implementations.memory import MemoryFileSystem

    class LostError(Exception):
        __module__ = "botocore.exceptions"
        status_code = 503

    def lost(*_: Any, **__: Any) -> Any:
        raise LostError("gone")

    for name in ("cat_file", "info", "pipe_file", "rm_file"):
        monkeypatch.setattr(MemoryFileSystem, name, lost)
    root = Root("memory://store")
    calls: list[Callable[[], object]] = [
        lambda: root.get("a"), lambda: root.size("a"), lambda: root.put("a", b""), lambda: root.put_new("a", b""),
        lambda: root.remove("a"), lambda: root.get_many(["a", "b"]), lambda: root.get_tails({"a": 1}), lambda: root.stamp("a"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ConnectionError, match="gone"):
            call()
