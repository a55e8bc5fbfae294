"""The layout of design.md, section 5, kept by a test: who may import whom, how long things may grow, what is not written at all."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from safety_table import SAFETY, WHOLE

SOURCE = Path(__file__).parents[2] / "src" / "sluicegate"
TESTS = Path(__file__).parents[1]

# The ratchet: lowered when the longest gets shorter, never raised.
FUNCTION_LINES_MAX = 50
MODULE_LINES_MAX = 430

IMPURE = {
    *("asyncio", "concurrent", "threading", "multiprocessing", "subprocess", "signal", "queue", "sched", "select", "selectors"),
    *("socket", "socketserver", "ssl", "http", "urllib", "sqlite3", "dbm", "os", "io", "pathlib", "tempfile", "shutil", "fcntl", "mmap"),
    *("time", "random", "secrets", "uuid", "logging"),
}
PURE_PACKAGES = {"msgspec", "bpe_openai", "re2"}

# Which of our own parts each part may import, beside itself. Only app and cli see everything.
MAY_IMPORT = {
    "core": {"dialects.form"},
    "dialects": {"core"},
    "ledger": {"core", "sqlite_file"},
    "http": {"core"},
    "observe": {"core"},
    "config": {"core", "providers", "prices", "dialects.tariffs", "ledger.address"},
    "prices": {"core"},
    "providers": {"core", "dialects.registry"},
    "journal": {"core"},
    "records": {"core", "sqlite_file"},
    "mock": {"core", "http"},
    "supervisor": set(),
}
WIRED_BY_APP_ALONE = {"app", "supervisor", "cli", "mock", "ledger.memory", "ledger.sqlite", "ledger.redis", "ledger.link", "http.server"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package: dotted name below `sluicegate`, and its tree."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        yield name, ast.parse(path.read_text(), str(path))


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of the modules that a module imports, wherever in it; of ours each imported name too, as it may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield str(node.module)
            if str(node.module).split(".")[0] == "sluicegate":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(tree: ast.Module) -> Iterator[str]:
    yield from (name.removeprefix("sluicegate.") for name in imports(tree) if name.startswith("sluicegate."))


def below(name: str, parts: set[str]) -> bool:
    """Whether a module is one of the parts or inside one."""
    return any(name == part or name.startswith(part + ".") for part in parts)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("part", ["core", "dialects"])
def test_pure_parts_import_nothing_that_does_io(part: str) -> None:
    """core and dialects import neither clocks nor randomness, sockets, files, databases, HTTP or asyncio, and no library but a pure one."""
    for name, tree in modules():
        if below(name, {part}):
            roots = {imported.split(".")[0] for imported in imports(tree)} - {"sluicegate"}
            assert not roots & IMPURE, name
            assert roots <= set(sys.stdlib_module_names) | PURE_PACKAGES, name


def test_parts_import_only_what_is_below_them() -> None:
    """Each part imports its own modules and those that the table allows."""
    for name, tree in modules():
        part = name.split(".")[0]
        if part in MAY_IMPORT:
            wrong = {imported for imported in ours(tree) if not below(imported, {part, *MAY_IMPORT[part]})}
            assert not wrong, name


def test_only_app_and_cli_wire() -> None:
    """Nobody but the composition root and the command line knows a ledger's backend, the server, the supervisor or the mock."""
    for name, tree in modules():
        part = name.split(".")[0]
        if part not in ("app", "cli", "__main__"):
            wrong = {imported for imported in ours(tree) if below(imported, WIRED_BY_APP_ALONE) and imported.split(".")[0] != part}
            assert not wrong, name


def test_functions_and_modules_stay_short() -> None:
    """No function and no module is longer than the ratchet allows."""
    lengths = {f"{name}.{f.name}": (f.end_lineno or 0) - f.lineno + 1 for name, tree in modules() for f in functions(tree)}
    assert {name: n for name, n in lengths.items() if n > FUNCTION_LINES_MAX} == {}
    sizes = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: n for name, n in sizes.items() if n > MODULE_LINES_MAX} == {}


def test_only_the_command_line_prints() -> None:
    """`print` is called in cli alone; everything else logs or returns."""
    for name, tree in modules():
        if name.split(".")[0] != "cli":
            calls = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"]
            assert not calls, name


def test_names_say_what_things_are() -> None:
    """No module or class is named after being of use."""
    for name, tree in modules():
        assert not set(name.split(".")) & {"utils", "util", "helpers", "helper", "common", "misc", "manager"}, name
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                assert not re.search(r"(Manager|Helper|Utils?)$", node.name), f"{name}.{node.name}"


def test_modules_say_what_they_are_for() -> None:
    """Every module that has any code begins with a docstring."""
    assert [name for name, tree in modules() if tree.body and not ast.get_docstring(tree)] == []


def test_what_is_not_done_is_absent() -> None:
    """No note in the source promises something for later."""
    for path in SOURCE.rglob("*"):
        if path.suffix in (".py", ".lua"):
            assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text()), path


def test_tests_say_what_they_show() -> None:
    """Every test function has a docstring that states the behaviour."""
    silent = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for function in functions(ast.parse(path.read_text())):
            if function.name.startswith("test_") and not ast.get_docstring(function):
                silent.append(f"{path.relative_to(TESTS)}:{function.name}")
    assert silent == []


def test_nothing_that_the_cap_depends_on_is_left_out_by_being_new() -> None:
    """Each module of a part that is wholly in the table of docs/safety.md has its line there, and each line its module (`make cov` judges them)."""
    there = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if ast.parse(path.read_text()).body[1:]}
    assert {name for name in there if name.startswith(WHOLE)} <= SAFETY.keys() <= there
