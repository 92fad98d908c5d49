"""What is wrong with a storage, whichever client speaks to it: the errors of botocore, Google, Azure, obstore, HTTP and SFTP
clients as Python's own, by kind.

A client's errors are known by the names of their classes and modules, so that no client is imported here.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from elmo_store.errors import BucketNotFoundError, StoreError

# First names of their modules.
_CLIENTS = frozenset((
    "botocore", "aiobotocore", "aiohttp", "azure", "gcsfs", "google", "obstore", "paramiko", "asyncssh", "smbprotocol",
    "requests", "urllib3", "http", "httpx", "httpcore",
))  # fmt: skip
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|(bucket|container) does not exist", re.IGNORECASE)
_NO_UPLOAD = "NoSuchUpload"  # a put in parts of which the end's answer was lost: it is to be put anew
_EXPIRED = re.compile(r"Expired|RefreshError|TokenRetrieval|UnauthorizedSSO|SSOToken")
_DENIED = re.compile(r"Credential|Authenti|Unauthenti|Unauthorized|PermissionDenied|SSO|ProfileNotFound|HostKey")
_EXISTS = re.compile(r"AlreadyExists|Precondition(Error|Failed)")
_UNREACHABLE = re.compile(
    r"Connect|Time(d)?out|Disconnected|Payload|Transport|ServiceRe(quest|sponse)|Incomplete|Closed|HTTPClientError|RetryError"
    r"|SSHException|ProtocolError"
)
_BUSY = frozenset({408, 425, 429})
_PUTS = ("pipe_file", "put_file")  # they need no folder: one that finds nothing finds no bucket
MOST_TEXT = 300  # characters of what a client says


def translate_error(error: Exception, where: str, *, put: bool = False) -> Exception:
    """``error`` of a storage at ``where`` as an OSError that names the place, the cause and the remedy.

    ConnectionError: it can't be reached now, and may be the next time. PermissionError: credentials are missing, expired or
    denied. FileNotFoundError: no such object; `BucketNotFoundError`: no such bucket, which a ``put`` that finds nothing tells
    too. FileExistsError. Any other client's error is an OSError; what is none of these comes back as it is.
    """
    chain = [error, *_causes(error)]
    clients = [each for each in chain if _is_client_s(each)]
    if isinstance(error, StoreError) or not (clients or isinstance(error, OSError | EOFError)):
        return error
    names = " ".join(kind.__name__ for each in clients for kind in type(each).__mro__)
    status, code, text = _status(chain), _code(chain), _text(clients[0] if clients else error)
    # Without a number it is no disk's; gcsfs has no class for it.
    forbidden = (isinstance(error, PermissionError) and error.errno is None) or str(error).startswith("Forbidden")
    not_found = status == 404 or (isinstance(error, FileNotFoundError) and error.errno is None)
    if code == _NO_UPLOAD:
        return OSError(errno.EIO, f"{where}: {text}")
    if _NO_BUCKET.search(f"{code} {text}") or (put and not_found):
        bucket = where.rpartition("://")[2].partition("/")[0]
        return BucketNotFoundError(f"there is no bucket {bucket} ({text}): make it, or check the name and the endpoint")
    if _EXISTS.search(names):
        return FileExistsError(where)
    if _EXPIRED.search(f"{code} {names}"):
        return PermissionError(f"the credentials for {where} have expired ({text}): renew them, then rerun the same command")
    if forbidden or status in (401, 403) or _DENIED.search(f"{code} {names}"):
        return PermissionError(f"access to {where} is denied ({text}): check the credentials, and what they may do there")
    if status == 400 and code in ("", "400"):  # an answer without a body
        return PermissionError(f"{where} is refused ({text}): credentials that have expired are one reason; check them")
    if _is_unreachable(error, clients, names, status):
        return ConnectionError(f"{where} can't be reached ({text}): look at the network, the endpoint and the service")
    if not_found:
        return FileNotFoundError(where)
    return error if isinstance(error, OSError) else OSError(errno.EIO, f"{where}: {text}")


def _is_unreachable(error: Exception, clients: list[BaseException], names: str, status: int | None) -> bool:
    if isinstance(error, ConnectionError | TimeoutError | EOFError) or str(error) == "Socket is closed":  # paramiko's
        return True
    if status is None:
        return bool(_UNREACHABLE.search(names)) or "GenericError" in names  # obstore's for a request without an answer
    return status in _BUSY or status >= 500


def _causes(error: BaseException) -> Iterator[BaseException]:
    while (cause := error.__cause__) is not None:
        yield cause
        error = cause


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
    text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1?…", str(error).partition("\n\nDebug source")[0])
    in_body = re.search(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", text, re.DOTALL)
    if match := in_body or re.search(r"Error performing \w+ (\S+) in \S+ - (.*)", text, re.DOTALL):  # the latter is obstore's
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
