"""What is wrong with a storage, whichever client speaks to it, and the one policy of retries.

The errors of botocore, Google, Azure, obstore, HTTP and SFTP clients come as Python's own, by kind. What may pass is tried again,
with growing random pauses, until a deadline.

A client's errors are known by the names of their classes and modules, so that no client is imported here.
"""

import errno
import itertools
import logging
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from elmo_store.errors import BucketNotFoundError, StoreError

T = TypeVar("T")
_log = logging.getLogger(__name__)
# First names of their modules.
_CLIENTS = frozenset((
    "botocore", "aiobotocore", "aiohttp", "azure", "gcsfs", "google", "obstore", "paramiko", "asyncssh", "smbprotocol",
    "requests", "urllib3", "http", "httpx", "httpcore",
))  # fmt: skip
_PUTS = ("pipe_file", "put_file")  # they need no folder: one that finds nothing finds no bucket
_NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|(bucket|container) does not exist", re.IGNORECASE
)
MOST_TEXT = 300  # characters of what a client says
# What an error is: the first row whose pattern is in its facts, the server's code, "HTTP" and the status, names of classes.
_KINDS: tuple[tuple[str, type[OSError], str], ...] = (
    # A put in parts of which the end's answer was lost: it is to be put anew.
    ("NoSuchUpload", OSError, "{where}: {text}"),
    ("no bucket", BucketNotFoundError, "there is no bucket {bucket} ({text}): make it, or check the name and the endpoint"),
    ("AlreadyExists|Precondition(Error|Failed)", FileExistsError, "{where}"),
    (
        "Expired|RefreshError|TokenRetrieval|UnauthorizedSSO|SSOToken", PermissionError,
        "the credentials for {where} have expired ({text}): renew them, then rerun the same command",
    ),
    (
        "HTTP40[13] |Forbidden|Credential|Authenti|Unauthenti|Unauthorized|PermissionDenied|SSO|ProfileNotFound|HostKey",
        PermissionError, "access to {where} is denied ({text}): check the credentials, and what they may do there",
    ),
    (  # an answer without a body
        "^(400)? HTTP400 ", PermissionError,
        "{where} is refused ({text}): credentials that have expired are one reason; check them",
    ),
    (
        "unreachable|HTTP(408|425|429|5..) |HTTPNone .*(Connect|Time(d)?out|Disconnected|Payload|Transport|Incomplete|Closed"
        "|ServiceRe(quest|sponse)|HTTPClientError|RetryError|SSHException|ProtocolError|GenericError)",
        ConnectionError, "{where} can't be reached ({text}): look at the network, the endpoint and the service",
    ),
    ("no object", FileNotFoundError, "{where}"),
)  # fmt: skip
DEADLINE_SECONDS = 60.0  # how long an operation is retried, elsewhere than on a local disk
LONGEST_PAUSE_SECONDS = 15.0
LOCAL_ATTEMPTS, LOCAL_PAUSE_SECONDS = 4, 1.0  # waiting helps little there

# OSErrors that no repetition mends. Those that are ValueErrors too are wrong uses of a file, such as io.UnsupportedOperation.
_FINAL = (
    FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError, StoreError, ValueError,
)  # fmt: skip
_FINAL_NUMBERS = frozenset((
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.EFBIG, errno.EBADF, errno.ELOOP,
))  # fmt: skip


def translate_error(error: Exception, where: str, *, put: bool = False) -> Exception:
    """``error`` of a storage at ``where`` as an OSError that names the place, the cause and the remedy.

    ConnectionError: it can't be reached now, and may be the next time. PermissionError: credentials are missing, expired or
    denied. FileNotFoundError: no such object; `BucketNotFoundError`: no such bucket, which a ``put`` that finds nothing tells
    too. FileExistsError. Any other client's error is an OSError; what is none of these comes back as it is.
    """
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    clients = [each for each in chain if _is_client_s(each)]
    if isinstance(error, StoreError) or not (clients or isinstance(error, OSError | EOFError)):
        return error
    status, code, text = _status(chain), _code(chain), _text(clients[0] if clients else error)
    facts = [
        code,
        f"HTTP{status}",
        *(kind.__name__ for each in clients for kind in type(each).__mro__),
    ]
    no_number = isinstance(error, OSError) and error.errno is None  # it is no disk's
    if (no_number and isinstance(error, PermissionError)) or str(error).startswith(
        "Forbidden"
    ):  # gcsfs has no class for it
        facts.append("Forbidden")
    if (
        isinstance(error, ConnectionError | TimeoutError | EOFError)
        or str(error) == "Socket is closed"
    ):  # paramiko's
        facts.append("unreachable")
    missing = status == 404 or (no_number and isinstance(error, FileNotFoundError))
    if _NO_BUCKET.search(f"{code} {text}") or (put and missing):
        facts.append("no bucket")
    if missing:
        facts.append("no object")
    bucket = where.rpartition("://")[2].partition("/")[0]
    for pattern, kind, message in _KINDS:
        if re.search(pattern, " ".join(facts)):
            said = message.format(where=where, text=text, bucket=bucket)
            return OSError(errno.EIO, said) if kind is OSError else kind(said)
    return error if isinstance(error, OSError) else OSError(errno.EIO, f"{where}: {text}")


def _is_client_s(error: BaseException) -> bool:
    return any(kind.__module__.partition(".")[0] in _CLIENTS for kind in type(error).__mro__)


def _status(chain: list[BaseException]) -> int | None:
    """The HTTP status that a server answered with, where one did."""
    for error in filter(_is_client_s, chain):
        answer = getattr(error, "response", None)
        if isinstance(answer, dict):
            number = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        elif match := re.search(r"status code: (\d{3})", str(error)):
            number = match[1]
        else:
            values = (getattr(error, name, None) for name in ("status", "status_code", "code"))
            number = next((value for value in values if value is not None), None)
        with suppress(TypeError, ValueError):
            if (status := int(number)) >= 100:  # SFTP clients have smaller numbers of their own
                return status
    return None


def _code(chain: list[BaseException]) -> str:
    """The server's own word for the error, such as ExpiredToken."""
    for error in chain:
        answer = getattr(error, "response", None)
        if isinstance(answer, dict) and "Error" in answer:
            return str(answer["Error"].get("Code", ""))
        if code := getattr(error, "error_code", None):
            return str(getattr(code, "value", code))
        if match := re.search(r"<Code>(\w+)</Code>", str(error)):
            return match[1]
    return ""


def _text(error: BaseException) -> str:
    """What the client says, on one line, without what it tells of the request: that may hold a signature."""
    text = re.sub(
        r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1?…", str(error).partition("\n\nDebug source")[0]
    )
    text = re.sub(r", url='[^']*'", "", text)  # aiohttp's: the message names the place already
    in_body = re.search(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text, re.DOTALL)
    if match := in_body or re.search(
        r"Error performing \w+ (\S+) in \S+ - (.*)", text, re.DOTALL
    ):  # the latter is obstore's
        text = f"{match[1]}: {match[2]}"
    text = " ".join(text.split()).rstrip(":")[:MOST_TEXT]
    return f"{type(error).__name__}: {text}" if _is_client_s(error) or not text else text


@contextmanager
def translated_errors(where: str, *, put: bool = False) -> Iterator[None]:
    """The block's errors as `translate_error` has them."""
    try:
        yield
    except Exception as error:
        raised = translate_error(error, where, put=put)
        if raised is error:
            raise
        raise raised from None  # its text is told; the rest may hold secrets


class TranslatingCalls:
    """The methods of a filesystem of fsspec, whose errors are translated. What it calls of its own is left alone."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        path = arguments[name == "put_file"] if arguments else ""
        where = path if isinstance(path, str) else str(next(iter(path), ""))
        with translated_errors(where, put=name in _PUTS):
            return getattr(self._filesystem, name)(*arguments, **options)


def is_transient(error: BaseException) -> bool:
    """Return True if ``error``, of a storage, may be gone the next time.

    Only OSErrors may, and errors of known clients, which count as the OSErrors that `translate_error` makes of them. Any other
    error, such as an AssertionError or a RuntimeError, is a fault of a program, which would be the same the next time.
    """
    if isinstance(error, Exception) and _is_client_s(error):
        error = translate_error(error, "")
    return (
        isinstance(error, OSError)
        and not isinstance(error, _FINAL)
        and error.errno not in _FINAL_NUMBERS
    )


def retry(
    work: Callable[[], T],
    *,
    local: bool,
    transient: Callable[[BaseException], bool] = is_transient,
    attempts: int | None = None,
    on_retry: Callable[[], None] = lambda: None,
) -> T:
    """What ``work`` returns, retried while its error is ``transient``; then its last error.

    ``local``: on a local disk. ``attempts``: at most, elsewhere until the deadline if that is not given. ``on_retry`` is called
    before each retry.
    """
    deadline, most = time.monotonic() + DEADLINE_SECONDS, LOCAL_ATTEMPTS if local else attempts
    first, longest = (0.05, LOCAL_PAUSE_SECONDS) if local else (0.5, LONGEST_PAUSE_SECONDS)
    for attempt in itertools.count(1):
        try:
            return work()
        except BaseException as error:
            if (
                attempt == most
                or (most is None and time.monotonic() >= deadline)
                or not transient(error)
            ):
                raise
            _log.info("trying again: %r", error)
            on_retry()
        time.sleep(random.uniform(0, min(longest, first * 2.0 ** min(attempt, 30))))
    raise AssertionError


class Retrying:
    """Objects whose every call is retried as `retry` does."""

    def __init__(self, objects: Any, *, local: bool, on_retry: Callable[[], None]) -> None:
        self._objects, self._retry = objects, partial(retry, local=local, on_retry=on_retry)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._objects, name)
        return lambda *args, **options: self._retry(partial(call, *args, **options))
