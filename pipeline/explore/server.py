"""The explorer's server: routes, token, headers.

Read-only. The page's own files hold nothing of the store and are open; everything of the store needs the token, which is in
the address that is printed (after #, so that it is sent nowhere) and travels in a header. Only requests that name this very
host are answered, so that no other site's name can be pointed here. The page may load from and ask this server only.

Of the questions of a kind one is computed at a time, in one thread; of those that wait the newest is answered and the others are
refused (429). Neighbours don't wait for a word's maps, which take longer; a plane by UMAP, which takes seconds, has a process of
its own.
"""

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from elmo_store.errors import StoreError
from pipeline.explore.service import BadRequestError, ExplorerService

STATIC = Path(__file__).parent / "static"
HOST = "127.0.0.1"
TOKEN_HEADER = "x-elmo-token"
BODY_BYTES = 64 << 10
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
Call = Callable[[Request], Awaitable[Response]]
Answer = TypeVar("Answer")


class NewerError(Exception):
    """The same was asked again before its turn came."""


class Turns:
    """A place where one question at a time is computed, in a thread, so that the server goes on. For one event loop."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[None]] = {}  # kind → set when a newer one comes

    async def run(self, kind: str, work: Callable[[], Answer]) -> Answer:
        """What ``work`` gives. NewerError, at once, when another of its kind comes while it waits."""
        if (older := self._waiting.pop(kind, None)) is not None and not older.done():
            older.set_result(None)
        newer = self._waiting[kind] = asyncio.get_running_loop().create_future()
        turn = asyncio.ensure_future(self._busy.acquire())
        try:
            await asyncio.wait((turn, newer), return_when=asyncio.FIRST_COMPLETED)
            if newer.done():
                raise NewerError
            del self._waiting[kind]
            return await run_in_threadpool(work)
        finally:
            if turn.done() and not turn.cancelled():
                self._busy.release()
            turn.cancel()
            if self._waiting.get(kind) is newer:
                del self._waiting[kind]


def application(service: ExplorerService, token: str, hosts: frozenset[str]) -> Starlette:
    """The application. ``hosts``: what a request's Host may say, ports included."""

    vectors, words, planes, texts, lookups, models = (Turns() for _ in range(6))

    def api(turns: Turns, ask: Callable[[dict[str, str]], Any]) -> Call:
        async def answer(request: Request) -> Response:
            return await _answer(turns, request.url.path, lambda: ask(dict(request.query_params)))

        return answer

    def neighbours(q: dict[str, str]) -> dict[str, Any]:
        return service.neighbours(q.get("token", ""), _numbers(q), q.get("by", ""), layers=q.get("layers") != "0")

    def word(q: dict[str, str]) -> dict[str, Any]:
        return service.word(q.get("word", ""), _numbers(q) or (), q.get("by", ""), layers=q.get("layers") != "0")

    async def embed(request: Request) -> Response:
        body = await request.body()
        if len(body) > BODY_BYTES:
            return JSONResponse({"error": "the text is too long"}, 413)
        return await _answer(models, "embed", lambda: service.embed(body.decode("utf-8", "replace")))

    routes = [
        Route("/api/about", api(lookups, lambda _: service.about())),
        Route("/api/search", api(texts, lambda q: service.search(q.get("q", ""), _whole(q, "offset", 0)))),
        Route("/api/sentence", api(lookups, lambda q: service.sentence(_whole(q, "number")))),
        Route("/api/neighbours", api(vectors, neighbours)),
        Route("/api/word", api(words, word)),
        Route("/api/suggest", api(words, lambda q: service.suggested(q.get("word", ""), q.get("by", "")))),
        Route("/api/umap-stage", api(lookups, lambda _: service.umap_stage())),
        Route("/api/umap", api(planes, lambda q: service.umap(q.get("word", ""), _numbers(q) or ()))),
        Route("/api/pair", api(vectors, lambda q: service.pair(q.get("first", ""), q.get("second", ""), _numbers(q)))),
        Route("/api/embed", embed, methods=["POST"]),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    guard = Middleware(BaseHTTPMiddleware, dispatch=_guard(token, hosts))
    return Starlette(routes=routes, middleware=[guard])


def _guard(token: str, hosts: frozenset[str]) -> Callable[[Request, Call], Awaitable[Response]]:
    async def dispatch(request: Request, call_next: Call) -> Response:
        response: Response
        sent = request.headers.get(TOKEN_HEADER, "")
        if request.headers.get("host", "") not in hosts:
            response = PlainTextResponse("this server answers to its own address only", 421)
        elif request.url.path.startswith("/api/") and not secrets.compare_digest(sent.encode(), token.encode()):
            response = JSONResponse({"error": "open the address that elmo-store printed: it holds the token"}, 403)
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    return dispatch


async def _answer(turns: Turns, kind: str, ask: Callable[[], Any]) -> Response:
    try:
        return JSONResponse(await turns.run(kind, ask))
    except NewerError:
        return JSONResponse({"error": "the same was asked again meanwhile"}, 429)
    except BadRequestError as error:
        return JSONResponse({"error": str(error)}, 400)
    except (StoreError, OSError) as error:
        return JSONResponse({"error": f"the store can't be read: {error}"}, 502)


def _whole(query: dict[str, str], name: str, default: int | None = None) -> int:
    try:
        return int(query[name]) if name in query or default is None else default
    except (KeyError, ValueError) as error:
        raise BadRequestError(f"{name} must be a whole number") from error


def _numbers(query: dict[str, str]) -> list[float] | None:
    if "s" not in query:
        return None
    try:
        return [float(share) for share in query["s"].split(",")]
    except ValueError as error:
        raise BadRequestError("s must be numbers with commas between them") from error


def bound(port: int) -> socket.socket:
    """A socket that listens on this machine's own address; OSError if the port is taken. Port 0 takes a free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(128)
    return listener


def server(service: ExplorerService, token: str, listener: socket.socket) -> uvicorn.Server:
    """A server for that socket; ``run(sockets=[listener])`` serves until Ctrl-C."""
    port = listener.getsockname()[1]
    hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
    config = uvicorn.Config(application(service, token, hosts), log_config=None, log_level="warning", access_log=False)
    return uvicorn.Server(config)
