"""What all commands share: where they print, how they fail, which configuration they read."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluicegate.config.load import Loaded, load, read_env_file

WIDTH_UNSEEN = 140  # of what goes into a file or a pipe

console = Console(width=None if sys.stdout.isatty() else WIDTH_UNSEEN)
errors = Console(stderr=True)

DEFAULT_CONFIG = Path("/etc/sluicegate/config.yaml")
ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration.")]
EnvFile = Annotated[Path | None, typer.Option("--env-file", metavar="FILE", help="NAME=value lines; the environment wins.")]


class InputError(Exception):
    """What the user gave is wrong: one line that names the field or the option. Exit code 2."""


def environment(file: Path | None) -> dict[str, str]:
    """The environment, over the lines of `--env-file`."""
    if file is not None and not file.is_file():
        raise InputError(f"--env-file: there is no file {file}")
    return (read_env_file(file) if file is not None else {}) | dict(os.environ)


def loaded(file: Path, env: Mapping[str, str]) -> Loaded:
    """The configuration of a file. Raises InputError if there is none, ConfigError if it cannot be used."""
    if not file.is_file():
        raise InputError(f"there is no configuration {file}; name one with --config")
    return load(file, env)
