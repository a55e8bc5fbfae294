"""A receiver of traces: OTLP over HTTP on a socket, decoded with OpenTelemetry's own messages.

async with receiving() as receiver:
    ...                        # tracing: {endpoint: receiver.url}
tree = receiver.tree()         # of the only trace that it got
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"


class Span:
    """One span as it came."""

    def __init__(self, sent: Any, resource: dict[str, Any]) -> None:
        self.name: str = sent.name
        self.kind: int = sent.kind  # 1 internal, 2 server, 3 client
        self.trace_id: str = sent.trace_id.hex()
        self.id: str = sent.span_id.hex()
        self.parent: str = sent.parent_span_id.hex()
        self.state: str = sent.trace_state
        self.since: int = sent.start_time_unix_nano
        self.until: int = sent.end_time_unix_nano
        self.error: bool = sent.status.code == 2
        self.said: str = sent.status.message
        self.attributes = _plain(sent.attributes)
        self.resource = resource

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]


def _plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


class Receiver:
    """answer: what it says to each call; None: nothing, ever."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: bytes | None = OK
        self.heads: list[bytes] = []
        self.spans: list[Span] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(lines[b"content-length"]))
                self.heads.append(head)
                if self.answer is None:
                    await reader.read()
                    break
                if self.answer is OK:
                    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                        resource = _plain(of_resource.resource.attributes)
                        self.spans += [Span(span, resource) for scope in of_resource.scope_spans for span in scope.spans]
                writer.write(self.answer)
        writer.close()

    def roots(self) -> list[Span]:
        """The requests' own spans, in the order in which they ended."""
        return [span for span in self.spans if span.kind == 2]

    def below(self, root: Span) -> list[Span]:
        """The parts of a request, in the order in which they began. Nothing is anywhere else in its trace."""
        parts = [span for span in self.spans if span.trace_id == root.trace_id and span is not root]
        assert all(span.parent == root.id for span in parts)
        assert len({span.id for span in [root, *parts]}) == len(parts) + 1
        return sorted(parts, key=lambda span: span.since)

    def only(self) -> tuple[Span, list[Span]]:
        """The only request, and its parts."""
        (root,) = self.roots()
        return root, self.below(root)


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver in this loop."""
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        server.close()
        for writer in receiver.writers:  # whoever still waits for an answer
            writer.close()
