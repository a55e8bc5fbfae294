"""`/admin/v1/configuration` and `/admin/v1/reload`: which configuration one worker has in use, and what is wrong with a later one.

Workers watch their files by themselves; a reload asks this one to look now, and tells what came of it.
"""

from typing import Annotated

from fastapi import APIRouter, Request

from sluicegate.admin.access import Caller, require
from sluicegate.admin.bodies import Answer
from sluicegate.admin.errors import Error
from sluicegate.admin.services import Services
from sluicegate.core.refusals import iso
from sluicegate.reject import Reject

Operator = Annotated[Caller, require("operator")]

router = APIRouter(prefix="/admin/v1", tags=["configuration"])


class ConfigurationAnswer(Answer):
    """version: of the text in use. refused: of a later text that cannot be used, and why (`problems`, each with file, line and field)."""

    file: str
    version: str
    loaded_at: str
    refused: str | None
    problems: list[str]


@router.get("/configuration", summary="The configuration in use", dependencies=[require("viewer")])
async def configuration(request: Request) -> ConfigurationAnswer:
    """As this worker has it."""
    return _answer(request.app.state.services)


@router.post(
    "/reload",
    summary="Read the configuration anew",
    responses={409: {"model": Error, "description": "configuration_refused: what was in use stays in use."}},
)
async def reload(request: Request, caller: Operator) -> ConfigurationAnswer:
    """What the files have is in use when this answers; the other workers follow within a second."""
    services: Services = request.app.state.services
    before = services.reloading.state
    problems = await services.reloading.reload()
    after = {"version": services.reloading.state.version, "problems": problems}
    services.audit.note(caller, "config.reload_asked", before.file, {"version": before.version}, after, request)
    if problems:
        raise Reject(409, "invalid_request_error", "configuration_refused", "The configuration was refused. " + " ".join(problems))
    return _answer(services)


def _answer(services: Services) -> ConfigurationAnswer:
    state = services.reloading.state
    return ConfigurationAnswer(
        file=state.file, version=state.version, loaded_at=iso(state.loaded_at_ms), refused=state.refused or None, problems=list(state.problems)
    )
