"""Errors of the admin API, in the form of the data plane's (OpenAI's): `{"error": {message, type, param, code}}`, `param` naming the field.

No error quotes a value that was sent, as it may be a secret; but names, and what is no limit.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, get_args

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from sluicegate.config.fields import ConfigError
from sluicegate.directory_changes import FromFile
from sluicegate.http.wire import error_body
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.records.directory_rows import Missing, Taken
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.reject import Reject

_CODES = {400: "invalid_body", 404: "path_not_found", 405: "method_not_allowed"}
_NOT_JSON = {"json_invalid": "The body is not JSON.", "missing": "The body is missing.", "model_attributes_type": "The body must be a JSON object."}


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class Error(BaseModel):
    """In OpenAI's form."""

    error: ErrorBody


def install(app: FastAPI) -> None:
    """Every error of this application is told in that form."""
    app.add_exception_handler(Reject, _rejected)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(LedgerUnavailable, _ledger_away)
    app.add_exception_handler(RecordsUnavailable, _records_away)
    app.add_exception_handler(ConfigError, _wrong)
    app.add_exception_handler(Missing, _missing)
    app.add_exception_handler(Taken, _taken)
    app.add_exception_handler(FromFile, _from_file)
    app.add_exception_handler(Exception, _failed)


def invalid(message: str, param: str | None, code: str = "invalid_value") -> Reject:
    """A 400 that names the field."""
    return Reject(400, "invalid_request_error", code, message, param)


def not_found(what: str, param: str, code: str) -> Reject:
    """A 404 of something that the path or the body names."""
    return Reject(404, "invalid_request_error", code, what, param)


def missing(id: str, param: str) -> Reject:
    """A 404 of a key or tenant, by its id."""
    what = "key" if "/@" in id else "tenant"
    return not_found(f"There is no {what} {id[:200]!r}.", param, f"{what}_not_found")


def answer_to(error: Reject) -> Response:
    """What is told of it."""
    return _answer(error.status, error.message, error.type, error.param, error.code, {k.decode(): v.decode() for k, v in error.headers})


async def _rejected(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Reject)
    return answer_to(error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    details = next((one for one in found if one["type"] == "extra_forbidden"), found[0])  # what is missing may be what was misspelt
    where, kind = [part for part in details["loc"] if isinstance(part, str | int)], str(details["type"])
    if where == ["body"] or kind == "json_invalid":
        hint = " Send it with `content-type: application/json`." if kind == "model_attributes_type" else ""
        return _answer(400, _NOT_JSON.get(kind, "The body must be a JSON object.") + hint, "invalid_request_error", None, "invalid_body")
    path = _written(where[1:], error.body, kind)
    param = ".".join(str(part) for part in path)
    if kind == "extra_forbidden":
        near = get_close_matches(str(where[-1]), _fields(request, where), 1)
        return _answer(
            400, f"Unknown field {param!r}." + (f" Did you mean {near[0]!r}?" if near else ""), "invalid_request_error", param, "unknown_field"
        )
    if kind == "missing":
        return _answer(400, f"The field {param!r} is missing.", "invalid_request_error", param, "missing_field")
    alike = [one for one in found if _written(one["loc"][1:], error.body, kind) == path]  # what each of its forms should be
    said = " or ".join(dict.fromkeys(str(one["msg"]).removeprefix("Value error, ").removeprefix("Input should be ") for one in alike))
    should = "It should be " if str(details["msg"]).startswith("Input should be ") else ""
    return _answer(400, f"Invalid value for {param!r}. {should}{said}.", "invalid_request_error", param, "invalid_value")


def _written(where: Sequence[str | int], body: Any, kind: str) -> list[str | int]:
    """The path as the client has written it: without the names that pydantic has for the forms which a value may have, and for names in a mapping."""
    if not isinstance(body, dict | list):  # a query has none
        return list(where)
    found: list[str | int] = []
    for part in where:
        inside = dict(enumerate(body)) if isinstance(body, list) else body if isinstance(body, dict) else {}
        if part in inside or (kind == "missing" and part is where[-1]):
            found.append(part)
            body = inside.get(part)
    return found


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_request")
    message = {
        400: "The body is not JSON.",
        404: f"{request.url.path[:200]!r} is not served here; /admin/docs shows what is.",
        405: f"{request.url.path[:200]} does not take {request.method}.",
    }.get(error.status_code, "The request could not be read.")
    headers = {"allow": ", ".join(sorted(_methods(request)))} if error.status_code == 405 else {}
    return _answer(error.status_code, message, "invalid_request_error", None, code, headers)


async def _ledger_away(_request: Request, _error: Exception) -> Response:
    return _answer(503, "The ledger does not answer.", "server_error", None, "ledger_unavailable", {"retry-after": "1"})


async def _records_away(_request: Request, _error: Exception) -> Response:
    return _answer(503, "The records do not answer.", "server_error", None, "records_unavailable", {"retry-after": "1"})


async def _wrong(_request: Request, error: Exception) -> Response:
    """What the rules of the configuration say of a value."""
    assert isinstance(error, ConfigError)
    problem = error.problems[0]
    param = ".".join(str(part) for part in problem.path)
    return _answer(400, f"Invalid value for {param!r}: {problem.message}.", "invalid_request_error", param, "invalid_value")


async def _missing(_request: Request, error: Exception) -> Response:
    return answer_to(missing(str(error), "id"))


async def _taken(_request: Request, error: Exception) -> Response:
    what, field = ("key", "name") if "/@" in str(error) else ("tenant", "id")
    return _answer(409, f"There is a {what} {str(error)[:200]!r} already.", "invalid_request_error", field, f"{what}_exists")


async def _from_file(_request: Request, error: Exception) -> Response:
    how = "Its `limits`, `models` and `blocked` can be overridden here, with PATCH; DELETE .../override takes that back."
    message = f"{str(error)[:200]!r} is defined in the configuration file, and changed there. {how}"
    return _answer(409, message, "invalid_request_error", "id", "defined_in_file")


async def _failed(_request: Request, _error: Exception) -> Response:
    return Response(error_body("Internal error.", "server_error", "internal_error"), 500, media_type="application/json")


def _answer(status: int, message: str, kind: str, param: str | None, code: str, headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
    return Response(body, status, headers, "application/json")


def _methods(request: Request) -> set[str]:
    """What a path takes: each method of it is a route of its own."""
    routers: Sequence[APIRouter] = request.app.state.routers
    matching = (route for router in routers for route in router.routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in matching if isinstance(route, APIRoute) for method in route.methods or ()}


def _fields(request: Request, where: Sequence[str | int]) -> list[str]:
    """The fields that may stand where an unknown one stood."""
    route = request.scope.get("route")
    dependant: Dependant | None = route.dependant if isinstance(route, APIRoute) else None
    params = (dependant.body_params if where[0] == "body" else dependant.query_params) if dependant is not None else []
    kind = _model(params[0].field_info.annotation) if params else None
    for part in where[1:-1]:
        if isinstance(part, str):  # else the place in a list
            field = next((f for name, f in kind.model_fields.items() if (f.alias or name) == part), None) if kind is not None else None
            kind = _model(field.annotation) if field is not None else None
    return [field.alias or name for name, field in kind.model_fields.items()] if kind is not None else []


def _model(annotation: Any) -> type[BaseModel] | None:
    """The section that a field has, be it one of a list or one that may be null."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model, get_args(annotation)) if found is not None), None)
