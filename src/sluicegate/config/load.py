"""Reads a configuration file: YAML with `${NAME}` and `${NAME:-default}` in any text, into a Config and the Policy compiled from it.

Every problem is told with the path of the field and the line of the file; all of them at once, as far as they can be seen past each other.
Unknown fields, keys that are written twice and missing variables are problems. Fails with ConfigError; a file that cannot be read, with OSError.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from pathlib import Path as File
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

from sluicegate.config.compile import compile_policy
from sluicegate.config.fields import ConfigError, FromEnv, Path, Problem
from sluicegate.config.schema import Config
from sluicegate.core.limits import LimitError
from sluicegate.core.tenants import Policy

EXAMPLE = File(__file__).parents[1] / "example.yaml"
VALUES_MAX = 1_000_000  # of a document; aliases of aliases make any number of a few lines


class Source(msgspec.Struct, frozen=True):
    """Where a configuration is read from, as often as need be. Variables come from `environ` and, where it lacks them, from `env_file`."""

    file: File
    environ: Mapping[str, str]
    env_file: File | None = None

    @property
    def files(self) -> tuple[File, ...]:
        """All that it is made of."""
        return (self.file,) if self.env_file is None else (self.file, self.env_file)

    def read(self) -> "Text":
        """What the files have now. Raises OSError."""
        of_env = self.env_file.read_bytes() if self.env_file is not None else b""
        return Text(self, self.file.read_bytes(), of_env)


class Text(msgspec.Struct, frozen=True):
    """What a source had at one time, to be told from what it had at others by `version`."""

    source: Source
    data: bytes
    of_env: bytes

    @property
    def version(self) -> str:
        return hashlib.sha256(self.data + b"\0" + self.of_env).hexdigest()[:12]

    def load(self) -> "Loaded":
        """The configuration. Raises ConfigError."""
        source, variables = self.source, {}
        if source.env_file is not None:
            variables = env_lines(_utf8(self.of_env, source.env_file), source.env_file)
        found = load_text(_utf8(self.data, source.file), {**variables, **source.environ}, str(source.file))
        return msgspec.structs.replace(found, source=source, version=self.version)


class Loaded(msgspec.Struct, frozen=True):
    """A configuration that can be used."""

    file: str
    config: Config
    policy: Policy
    source: Source | None = None  # None: it was given as a text
    version: str = ""  # of the text


def load(file: File, environ: Mapping[str, str] | None = None, env_file: File | None = None) -> Loaded:
    """Reads a file. Variables come from `environ` (the process's own by default) and, where it lacks them, from `env_file`."""
    return Source(file, dict(os.environ if environ is None else environ), env_file).read().load()


def _utf8(data: bytes, file: File) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), [Problem((), f"is not UTF-8: {error.reason}")]) from None


def load_text(text: str, environ: Mapping[str, str], file: str = "config") -> Loaded:
    """Reads the text of a file."""
    tree = _Tree(text, environ, file)
    problems = list(tree.problems)
    try:
        config = Config.model_validate(tree.value, context={"environ": environ})
    except ValidationError as error:
        problems += schema_problems(error, problems)
    else:
        try:
            policy = compile_policy(config, file, environ)
        except ConfigError as error:
            problems += error.problems
    if problems:
        for problem in problems:
            problem.line = problem.line or tree.line(problem.path)
        raise ConfigError(file, problems)
    return Loaded(file, config, policy)


_ENV_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s#\"'][^#]*?)?)\s*(?:#.*)?")


def env_lines(text: str, file: File) -> dict[str, str]:
    """`NAME=value` per line; quotes, `export` and `#` comments are understood, nothing is expanded."""
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _ENV_LINE.fullmatch(stripped)
        if match is None:
            raise ConfigError(str(file), [Problem((), "must be NAME=value", number)])
        variables[match[1]] = next((value for value in match.groups()[1:] if value is not None), "")
    return variables


# -- YAML ---------------------------------------------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")


class _Tree:
    """A YAML document as plain values, with the line of each path. Duplicate keys and missing variables are among `problems`."""

    def __init__(self, text: str, environ: Mapping[str, str], file: str) -> None:
        self.problems: list[Problem] = []
        self._environ = environ
        self._lines: dict[Path, int] = {}
        self._open: list[Node] = []
        yaml = YAML(typ="safe", pure=True)
        try:
            root = yaml.compose(text)
        except RecursionError:
            raise ConfigError(file, [Problem((), "YAML: is nested too deeply", 0)]) from None
        except YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            message = getattr(error, "problem", None) or "is not readable"
            if mark and "${" in "".join(text.splitlines()[mark.line : mark.line + 1]):
                message += '; inside { } and [ ] a variable needs quotes: "${NAME}"'
            raise ConfigError(file, [Problem((), f"YAML: {message}", mark.line + 1 if mark else 0)]) from None
        self._left = VALUES_MAX
        self.value: object = self._read(root, ()) if root is not None else {}
        if self._left < 0:
            raise ConfigError(file, [Problem((), f"YAML: has more than {VALUES_MAX} values, with all that aliases stand for", 0)])

    def line(self, path: Path) -> int:
        """The line of a field, or of the nearest thing that contains it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def _read(self, node: Node, path: Path) -> object:
        self._left -= 1
        if self._left < 0:
            return None
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if any(node is other for other in self._open):
            self.problems.append(Problem(path, "an alias of something that contains it"))
            return None
        self._open.append(node)
        value = self._mapping(node, path) if isinstance(node, MappingNode) else [self._read(item, (*path, i)) for i, item in enumerate(node.value)]
        self._open.pop()
        return value

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self.problems.append(Problem(path, "keys must be plain names", key_node.start_mark.line + 1))
                continue
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in found:
                self.problems.append(Problem((*path, key), f"is written twice, first in line {self._lines[(*path, key)]}", line))
                continue
            self._lines[(*path, key)] = line
            found[key] = self._read(value_node, (*path, key))
        return found

    def _scalar(self, node: ScalarNode, path: Path) -> object:
        tag, text = str(node.tag), str(node.value)
        match tag.removeprefix("tag:yaml.org,2002:"):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return self._number(text)
            case "float":
                return self._number(text)
            case "str" | "timestamp":
                return self._expand(text, path)
        self.problems.append(Problem(path, f"has the tag {tag}, which means nothing here"))
        return None

    @staticmethod
    def _number(text: str) -> object:
        """Exact: fractions stay decimal."""
        plain = (
            text.replace("_", "").replace(".inf", "inf").replace(".Inf", "inf").replace(".INF", "inf").replace(".nan", "nan").replace(".NaN", "nan")
        )
        try:
            return int(plain, 0) if plain[:2].lower() in ("0x", "0o") else int(plain)
        except ValueError:
            try:
                return Decimal(plain)
            except InvalidOperation:
                return text

    def _expand(self, text: str, path: Path) -> str:
        if "${" not in text:
            return text
        parts, end = [], 0
        for match in _VARIABLE.finditer(text):
            name, default = match.groups()
            if name is None:
                self.problems.append(Problem(path, "has a '${' that is not closed; write ${NAME} or ${NAME:-default}"))
                return FromEnv(text)
            value = self._environ.get(name) or default if default is not None else self._environ.get(name)
            if value is None:
                self.problems.append(Problem(path, f"the environment variable {name} is not set; write ${{{name}:-default}} for a default"))
                value = ""
            parts += [text[end : match.start()], value]
            end = match.end()
        return FromEnv("".join(parts) + text[end:])


# -- problems of the schema ---------------------------------------------------------------------------------------------------------------

_WORDS = {
    "missing": "is required",
    "string_type": "must be a text",
    "list_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping of names",
    "model_type": "must be a mapping of fields",
    "int_type": "must be a whole number",
    "bool_type": "must be on or off",
    "too_short": "must not be empty",
}
_PATTERNS = {
    "listen": "must be host:port, such as 127.0.0.1:8080 or [::1]:8080",
    "ledger": "must be memory://, sqlite:///path, redis://host:6379/0, redis+cluster://..., redis+sentinel://... or the same with rediss",
    "records": "must be sqlite:///path or postgresql://user@host/database",
    "sha256": "must be 64 hexadecimal digits: the SHA-256 of the key",
}


def schema_problems(error: ValidationError, known: list[Problem], section: type[BaseModel] = Config) -> Iterator[Problem]:
    """What pydantic found in a section, in our words; nothing that was found before at the same place."""
    before = {problem.path for problem in known}
    for details in error.errors(include_url=False, include_input=False):
        path = tuple(part for part in details["loc"] if part != "[key]")
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, LimitError):
            yield Problem(path + tuple(cause.path.split(".") if cause.path else ()), cause.message)
        elif path not in before:
            yield Problem(path, _message(details, path, section))


def _message(details: ErrorDetails, path: Path, section: type[BaseModel]) -> str:
    kind, last = details["type"], str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        fields = _fields_at(path[:-1], section)
        near = get_close_matches(last, fields, 1)
        return "unknown field; " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(fields))}")
    if kind == "string_pattern_mismatch" and last in _PATTERNS:
        return _PATTERNS[last]
    if kind in _WORDS:
        return _WORDS[kind]
    message = details["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)
    return message[:1].lower() + message[1:]


def _fields_at(path: Path, section: Any) -> list[str]:
    """The names of the fields that the section at a path below another may have."""
    for part in path:
        section = _below(section, part)
    return [field.alias or name for name, field in section.model_fields.items()] if _is_section(section) else []


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _below(annotation: Any, part: str | int) -> object:
    """The type of what an annotation has under a name or index."""
    if not _is_section(annotation):
        found = get_args(annotation)[-1:]  # of a list, or of a mapping's values
    else:
        field = next((f for name, f in annotation.model_fields.items() if (f.alias or name) == part), None)
        found = (field.annotation,) if field is not None else get_args(annotation.__annotations__.get("__pydantic_extra__"))[-1:]
    if not found:
        return None
    return next((one for one in get_args(found[0]) if _is_section(one) and get_origin(found[0]) is UnionType), found[0])
