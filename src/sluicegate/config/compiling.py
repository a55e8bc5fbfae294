"""What the parts of the compiler share: the problems that are found, and how names and limits are read."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from sluicegate.config.fields import Path, Problem
from sluicegate.config.schema import Config
from sluicegate.core.limits import Limit

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")


class Compiling:
    """One part of the compiler. All parts of one run put what is wrong into the same list."""

    def __init__(self, config: Config, environ: Mapping[str, str], problems: list[Problem]) -> None:
        """environ: may name proxies."""
        self.config = config
        self.environ = environ
        self.problems = problems

    def problem(self, path: Path, message: str) -> None:
        """Notes one thing that is wrong."""
        self.problems.append(Problem(path, message))

    def check_name(self, name: str, pattern: re.Pattern[str], path: Path) -> None:
        """pattern: NAME or MODEL."""
        if not pattern.fullmatch(name):
            more = " ._:/@+-" if pattern is MODEL else " ._-"
            self.problem(path, f"{name[:100]!r} is no name; names have letters, digits and{more}, and begin with a letter or digit")

    def limits(self, written: Sequence[Limit | None]) -> list[Limit]:
        """Those that are limits, with the marks that `budget.warn_at` gives to windows that do not refill."""
        marks = self.config.budget.warn_at
        return [
            msgspec.structs.replace(limit, warn_at=marks) if limit.warn_at is None and limit.spends else limit
            for limit in written
            if limit is not None
        ]

    def check_models_of(self, limits: Sequence[Limit | None], path: Path) -> None:
        """Whether the models that limits name are there."""
        for i, limit in enumerate(limits):
            for name in sorted(limit.models or ()) if limit is not None else ():
                if name not in self.config.models:
                    self.problem((*path, i, "models"), f"there is no model {name!r}; {did_you_mean(name, self.config.models)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """For a name that is not known: the nearest one, or all."""
    names = list(known)
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names[:20])}" if names else "there is none at all"
