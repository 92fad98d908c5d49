"""Whose question is computed: one at a time, and of those that wait the newest of its kind alone."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

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
