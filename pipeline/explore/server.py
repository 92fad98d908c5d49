"""The explorer's server: routes, token, headers.

Read-only. The page's own files hold nothing of the store and are open; everything of the store needs the token, which is in
the address that is printed (after #, so that it is sent nowhere) and travels in a header. Only requests that name this very
host are answered, so that no other site's name can be pointed here. The page may load from and ask this server only.
"""

import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

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
from pipeline.explore.service import ExplorerService

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


def application(service: ExplorerService, token: str, hosts: frozenset[str]) -> Starlette:
    """The application. ``hosts``: what a request's Host may say, ports included."""

    def api(path: str, ask: Callable[[Mapping[str, str]], Any]) -> Route:
        return Route(f"/api/{path}", lambda request: JSONResponse(ask(request.query_params)))

    def mix(q: Mapping[str, str]) -> dict[str, Any]:
        """The mix that is asked about, none of it without weights, and how much of it."""
        s = [float(share) for share in q["s"].split(",")] if "s" in q else []
        return {"s": s, "by": q.get("by", ""), "layers": q.get("layers") != "0"}

    async def embed(request: Request) -> Response:
        body = await _bounded_body(request)
        if body is None:
            return JSONResponse({"error": "the text is too long"}, 413)
        return JSONResponse(await run_in_threadpool(service.embed, body.decode("utf-8", "replace")))

    routes = [
        api("about", lambda _: service.about()),
        api("search", lambda q: service.search(q.get("q", ""), int(q.get("offset", 0)))),
        api("sentence", lambda q: service.sentence(int(q["number"]))),
        api("neighbours", lambda q: service.neighbours(q["token"], **mix(q))),
        api("word", lambda q: service.word(q["word"], **mix(q))),
        api("suggest", lambda q: service.suggest(q["word"], q["by"])),
        Route("/api/embed", embed, methods=["POST"]),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    guard = Middleware(BaseHTTPMiddleware, dispatch=_guard(token, hosts))
    refused = (ValueError, ArithmeticError, LookupError, StoreError, OSError)
    handlers: dict[Any, Any] = dict.fromkeys(
        refused, lambda _, error: JSONResponse({"error": str(error)}, 400)
    )
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)


async def _bounded_body(request: Request) -> bytes | None:
    """Return the request's body, or None as soon as more than `BODY_BYTES` of it have come."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            return None
    return bytes(body)


def _guard(token: str, hosts: frozenset[str]) -> Callable[[Request, Call], Awaitable[Response]]:
    async def dispatch(request: Request, call_next: Call) -> Response:
        response: Response
        sent = request.headers.get(TOKEN_HEADER, "")
        if request.headers.get("host", "") not in hosts:
            response = PlainTextResponse("this server answers to its own address only", 421)
        elif request.url.path.startswith("/api/") and not secrets.compare_digest(
            sent.encode(), token.encode()
        ):
            response = JSONResponse(
                {"error": "open the address that elmo-store printed: it holds the token"}, 403
            )
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    return dispatch


def server(service: ExplorerService, token: str, listener: socket.socket) -> uvicorn.Server:
    """A server for that socket; ``run(sockets=[listener])`` serves until Ctrl-C."""
    port = listener.getsockname()[1]
    hosts = frozenset({f"{HOST}:{port}", f"localhost:{port}"})
    # h11 bounds what it buffers of a request's head; httptools, which uvicorn prefers, does not.
    config = uvicorn.Config(
        application(service, token, hosts),
        http="h11",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
    )
    return uvicorn.Server(config)
