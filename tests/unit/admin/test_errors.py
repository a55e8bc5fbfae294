"""Errors of the admin API: one form, the field by its path, and nothing of what was sent or of what went wrong inside."""

import contextlib
import json
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import Field

from sluicegate.admin import errors
from sluicegate.admin.bodies import Asked
from sluicegate.ledger.contract import LedgerUnavailable

SECRET = "sk-a-secret-that-was-sent"


class Limit(Asked):
    amount: int
    unit: str = "usd"


class Key(Asked):
    name: str
    limits: list[Limit] = Field(default=[])
    budget: Limit | None = None


def app() -> FastAPI:
    router = APIRouter()

    @router.post("/keys")
    async def make(asked: Key) -> dict[str, str]:
        raise {"internal": RuntimeError(SECRET), "ledger": LedgerUnavailable(SECRET)}.get(
            asked.name, errors.not_found("No.", "name", "key_not_found")
        )

    made = FastAPI()
    made.state.routers = [router]
    made.include_router(router)
    errors.install(made)
    return made


async def told(body: Any) -> tuple[int, Any]:
    """Status and error of the answer to a POST."""
    sent: list[Any] = []
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/keys", "raw_path": b"/keys", "query_string": b"", "headers": headers, "root_path": ""}

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    with contextlib.suppress(RuntimeError):  # what was not expected is raised too, for the connection's log
        await app()(scope, receive, send)
    start, *parts = sent
    text = b"".join([part.get("body", b"") for part in parts])
    assert SECRET.encode() not in text
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return start["status"], error


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"name": "k", "budget": {"limit": 1, "amount": 2}}, "unknown_field", "budget.limit"),
        ({"name": "k", "limits": [{"amount": 1}, {"amount": 1, "per": "day"}]}, "unknown_field", "limits.1.per"),
        ({"name": "k", "limits": [{"unit": "usd"}]}, "missing_field", "limits.0.amount"),
        ({"name": "k", "limits": [{"amount": SECRET}]}, "invalid_value", "limits.0.amount"),
        ({"name": "k", "limits": [{"amount": "1"}]}, "invalid_value", "limits.0.amount"),
        ({"name": {"a": SECRET}}, "invalid_value", "name"),
        ([], "invalid_body", None),
    ],
)
async def test_a_field_is_named_by_its_path(body: Any, code: str, param: str | None) -> None:
    """Also inside lists and sections; a value is not quoted, and no text is taken for a number."""
    status, error = await told(body)
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", code)
    assert param is None or error["param"] == param


async def test_a_field_that_is_nearly_right() -> None:
    """The one that was probably meant is named, wherever it would stand."""
    assert "Did you mean 'limits'?" in (await told({"name": "k", "limit": []}))[1]["message"]
    assert "Did you mean 'amount'?" in (await told({"name": "k", "budget": {"amont": 1}}))[1]["message"]
    assert "Did you mean 'amount'?" in (await told({"name": "k", "limits": [{"amont": 1}]}))[1]["message"]


@pytest.mark.parametrize(
    ("name", "status", "code"), [("internal", 500, "internal_error"), ("ledger", 503, "ledger_unavailable"), ("other", 404, "key_not_found")]
)
async def test_what_goes_wrong_inside(name: str, status: int, code: str) -> None:
    """Is told by its kind alone."""
    found, error = await told({"name": name})
    assert (found, error["code"]) == (status, code)
