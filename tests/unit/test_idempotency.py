"""When an idempotency key is taken, renewed, kept and given up; the exchange of a client that may leave. Time is the test's."""

import asyncio
from collections.abc import Callable

from sluicegate.idempotency import Idempotency
from sluicegate.lasting import BODY_MAX, Client, Taken
from support_ledgers import Clock
from support_once import MemoryStore
from support_playbook import FakeExchange
from support_sockets import settle


def client() -> tuple[Client, FakeExchange]:
    exchange = FakeExchange()
    return Client(exchange), exchange  # type: ignore[arg-type]


def test_the_last_bytes_wait() -> None:
    """Everything else goes out as it comes; a copy of all of it is there before the last byte has gone."""
    lasting, exchange = client()
    lasting.start(200, (), None, b"\r\nx-a: 1\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache")
    lasting.write(b"one")
    lasting.finish(b"two")
    assert (lasting.status, lasting.content_type, lasting.copied) == (200, "text/event-stream; charset=utf-8", [b"one", b"two"])
    assert (exchange.data, exchange.finished) == (b"one", False)
    lasting.release()
    assert (exchange.data, exchange.finished) == (b"onetwo", True)


def test_a_client_that_has_left_is_not_missed() -> None:
    """The answer is copied on, and nobody is told."""
    lasting, exchange = client()
    lasting.start(200, (), None)
    exchange.leave()
    lasting.write(b"one")
    lasting.finish(b"two")
    lasting.release()
    assert (lasting.gone, lasting.copied, exchange.data, lasting.unsent()) == (False, [b"one", b"two"], b"", 0)


def test_an_answer_that_is_cut_off_has_no_last_bytes() -> None:
    """An abort goes through at once."""
    lasting, exchange = client()
    lasting.start(200, (), None)
    lasting.abort()
    lasting.release()
    assert (exchange.aborted, exchange.finished) == (True, False)


def test_no_more_than_a_mebibyte_is_copied() -> None:
    """What is beyond it is delivered and not kept, and neither is what came before."""
    lasting, exchange = client()
    lasting.start(200, (), None)
    lasting.write(b"x" * BODY_MAX)
    assert lasting.copied is not None
    lasting.finish(b"x")
    lasting.release()
    assert (lasting.copied, len(exchange.data)) == (None, BODY_MAX + 1)


async def test_a_key_is_renewed_while_its_request_runs() -> None:
    """Three times a lease, also after one that failed."""
    store, slept = MemoryStore(Clock()), list[tuple[float, Callable[[], None]]]()

    async def sleep(pause_s: float) -> None:
        waiter = asyncio.get_running_loop().create_future()
        slept.append((pause_s, lambda: waiter.set_result(None)))
        await waiter

    keeper = Idempotency(store, 60_000, sleep)
    lasting, _ = client()
    task = asyncio.get_running_loop().create_task(keeper._renew(Taken("k", "p", lasting), "req_1"))
    for away in (True, False, False):
        await settle()
        store.away = away
        slept[-1][1]()
    await settle()
    assert [pause_s for pause_s, _ in slept] == [20.0] * 4
    assert (store.renewals, store.keys["k"][1]) == (3, "req_1")
    task.cancel()
