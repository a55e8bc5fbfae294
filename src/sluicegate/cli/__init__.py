"""The command line. Exit codes: 0 success, 2 a wrong configuration or input (one line that names the field), 1 an error of the operating system."""

import sys

import typer

from sluicegate.cli import demonstration, inspection, planning, prices, reporting, serving
from sluicegate.cli.console import InputError, errors
from sluicegate.config.fields import ConfigError
from sluicegate.ledger.contract import LedgerUnavailable
from sluicegate.mock import MockOptionError
from sluicegate.records.rows import RecordsUnavailable
from sluicegate.recovery import OtherRecords

commands = typer.Typer(name="sluicegate", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
ledger = typer.Typer(no_args_is_help=True, help="The ledger of a configuration.")
records = typer.Typer(no_args_is_help=True, help="The records of a configuration.")

commands.command()(serving.serve)
commands.command(hidden=True)(serving.worker)
commands.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serving.mock)
commands.command()(inspection.check)
commands.command()(planning.plan)
commands.command()(demonstration.demo)
commands.command()(reporting.report)
commands.add_typer(ledger, name="ledger")
commands.add_typer(prices.commands, name="prices")
ledger.command()(inspection.show)
commands.add_typer(records, name="records")
records.command("sum")(reporting.build_sums)


@commands.callback()
def _about() -> None:
    """Sluicegate: an LLM gateway whose budgets cannot be overspent."""


@ledger.callback()
def _about_ledger() -> None:
    """What the ledger of a configuration holds."""


@records.callback()
def _about_records() -> None:
    """What the records of a configuration hold."""


def main() -> None:
    """Entry point of `sluicegate` and of `python -m sluicegate`."""
    try:
        commands()
    except (InputError, ConfigError, MockOptionError) as error:
        _stop(2, str(error))
    except (OSError, LedgerUnavailable, RecordsUnavailable, OtherRecords) as error:
        _stop(1, f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error))


def _stop(code: int, message: str) -> None:
    errors.print(f"sluicegate: {message}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)
