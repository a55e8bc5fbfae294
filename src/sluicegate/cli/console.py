"""What all commands share: where they print, how they fail, which configuration they read."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluicegate.config.load import Loaded, Source

WIDTH_UNSEEN = 140  # of what goes into a file or a pipe

console = Console(width=None if sys.stdout.isatty() else WIDTH_UNSEEN)
errors = Console(stderr=True)

DEFAULT_CONFIG = Path("/etc/sluicegate/config.yaml")
ConfigFile = Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration.")]
EnvFile = Annotated[Path | None, typer.Option("--env-file", metavar="FILE", help="NAME=value lines; the environment wins.")]


class InputError(Exception):
    """What the user gave is wrong: one line that names the field or the option. Exit code 2."""


def source(file: Path, env_file: Path | None, **more: str) -> Source:
    """Where a configuration is read from: the file, the environment with some variables more, the lines of `--env-file`. Raises InputError."""
    if env_file is not None and not env_file.is_file():
        raise InputError(f"--env-file: there is no file {env_file}")
    if not file.is_file():
        raise InputError(f"there is no configuration {file}; name one with --config")
    return Source(file, {**os.environ, **more}, env_file)


def loaded(file: Path, env_file: Path | None) -> Loaded:
    """The configuration of a file. Raises InputError if there is none, ConfigError if it cannot be used."""
    return source(file, env_file).read().load()
