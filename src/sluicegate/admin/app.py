"""The admin API: a FastAPI application of one worker, below /admin/. Loaded only where an admin key is configured.

Every route but the two of the documentation has `require(role)`; a test walks the routes and finds that nobody gets in without.
"""

import asyncio
from functools import cache
from typing import Any

import msgspec
from fastapi import Depends, FastAPI, Response
from fastapi.openapi.utils import get_openapi

from sluicegate import __version__
from sluicegate.admin import (
    audit,
    configuration,
    errors,
    events,
    faults,
    forecasts,
    health,
    holds,
    increases,
    keys,
    limits,
    me,
    plans,
    prices,
    tenants,
    usage,
)
from sluicegate.admin.repeats import once
from sluicegate.admin.services import Services
from sluicegate.openapi import page

_ABOUT = (
    "Administration of a gateway. Send the admin key as `authorization: Bearer KEY`. Errors are JSON in OpenAI's form and name the field in `param`; "
    "unknown fields are errors. Lists come in pages: `limit`, and `after` with the `next` of the page before."
)
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": errors.Error, "description": text}
    for status, text in {
        400: "invalid_body, unknown_field, missing_field, invalid_value: `param` names the field.",
        401: "invalid_admin_key.",
        403: "not_allowed: the role does not suffice, or an ordinary key says what it may not; or what it is about is switched off.",
        404: "path_not_found, or what the request names is not there.",
        413: "request_body_too_large.",
        429: "too_many_failures: from this address; `retry-after` says when to come back.",
        503: "ledger_unavailable, records_unavailable.",
    }.items()
}


def build(services: Services) -> FastAPI:
    """The application."""
    app = FastAPI(
        title="Sluicegate: administration",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        responses=_ERRORS,
        generate_unique_id_function=lambda route: "_".join((*map(str, route.tags), route.name)),
    )
    app.state.services = services
    app.state.live_clients = set()
    app.state.oversubscription = health.Oversubscription()
    app.state.forecasting = asyncio.Lock()
    app.state.adjusting = asyncio.Lock()
    errors.install(app)
    app.state.routers = [
        part.router
        for part in (health, faults, configuration, audit, events, forecasts, usage, limits, increases, holds, me, keys, tenants, prices, plans)
    ]
    for router in app.state.routers:
        app.include_router(router, dependencies=[Depends(once)])
    documents = cache(lambda: _document(app))  # when somebody asks for it

    @app.get("/admin/openapi.json", include_in_schema=False)
    async def openapi_json() -> Response:
        return Response(msgspec.json.encode(documents()), media_type="application/json")

    @app.get("/admin/docs", include_in_schema=False)
    async def docs() -> Response:
        # Nothing is fetched and nothing runs, whatever the document says.
        policy = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(page(documents(), "/admin/openapi.json"), media_type="text/html", headers=policy)

    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, without its own form of errors."""
    made: dict[str, Any] = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    for operations in made["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)
    return made
