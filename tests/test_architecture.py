"""The shape of the code.

1. Who may import whom: a package imports only packages of rows above its own, and those of BESIDE.
2. The pure packages touch no socket, clock, environment, random source, log or file.
3. No two modules have a public class of one name.
4. The table names what there is and nothing else, and CONTRIBUTING.md names it too, in the table's order.
5. A package has at most 16 modules beside its sub-packages.
"""

import ast
import re
from collections import Counter
from pathlib import Path

SRC = Path(__file__).parent.parent / "src" / "turnkeeper"
MAX_MODULES = 16
"""Of one package: with more, look for the concept that hides among them, and give it a sub-package."""

ROWS: tuple[tuple[str, ...], ...] = (
    (
        "ids",
        "jsontypes",
        "errors",
        "choices",
        "fields",
        "passthrough",
        "access",
        "disclosure",
        "texts",
        "headers",
        "modelconfig",
    ),
    ("channels", "core", "matching", "rendering", "samples", "dialects"),
    ("config", "clock", "tasks", "telemetry", "logs", "store", "metrics", "tracing", "client"),
    ("engines", "tiny"),
    ("generation",),
    ("fleet",),
    ("service",),
    ("http",),
    ("server",),
    ("views", "testing", "bench", "demo", "trainer", "cli"),
)
"""A package may import itself and every row above its own."""

BESIDE: dict[str, tuple[str, ...]] = {
    "rendering": ("core",),
    "dialects": ("core",),
    "cli": ("bench", "demo", "views"),
    "samples": ("core", "channels"),
    "errors": (),
    "passthrough": ("errors",),
    "access": ("errors", "ids"),
    "disclosure": ("errors", "jsontypes"),
    "fields": ("jsontypes",),
    "modelconfig": ("jsontypes",),
    "core": ("matching", "channels"),
    "telemetry": ("clock",),
    "logs": ("telemetry",),
    "metrics": ("telemetry",),
    "tracing": ("telemetry",),
}
"""Packages of the same row that a package may import as well, each for its reason: samples are cut out of
core's turns and of side channels; core asks a matcher, and a turn holds items of side channels; the command line
starts the demo and the bench; rendering makes the prompts of core's turns; dialects read requests of turns and
write what turns completed; telemetry measures the phases of a turn by a clock; log, metrics and traces
are its readers."""

PURE = (
    "channels",
    "core",
    "matching",
    "rendering",
    "samples",
    "dialects",
    "ids",
    "jsontypes",
    "errors",
    "choices",
    "fields",
    "passthrough",
    "access",
    "disclosure",
    "texts",
    "headers",
    "modelconfig",
)
IMPURE_MODULES = {
    "asyncio",
    "socket",
    "time",
    "datetime",
    "os",
    "random",
    "secrets",
    "uuid",
    "logging",
    "threading",
    "subprocess",
    "pathlib",
    "aiohttp",
    "starlette",
}


def _package(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            found.add(node.module or "")
            if node.module == "turnkeeper":
                found.update(f"turnkeeper.{alias.name}" for alias in node.names)
    return found


def _allowed(package: str) -> set[str]:
    row = next(index for index, names in enumerate(ROWS) if package in names)
    above = {name for names in ROWS[:row] for name in names}
    return above | {package, *BESIDE.get(package, ())}


MODULES = sorted(path for path in SRC.rglob("*.py") if _package(path) not in ("__init__", "__main__"))


def test_a_module_imports_only_what_stands_above_it() -> None:
    forbidden = {
        str(path.relative_to(SRC)): found
        for path in MODULES
        if (found := _imported_packages(path) - {"__version__"} - _allowed(_package(path)))
    }
    assert forbidden == {}


def _imported_packages(path: Path) -> set[str]:
    return {parts[1] for name in _imports(path) if (parts := name.split("."))[0] == "turnkeeper" and len(parts) > 1}


def test_a_pure_module_touches_nothing_outside() -> None:
    touched = {
        str(path.relative_to(SRC)): found for path in MODULES if _package(path) in PURE and (found := _touched(path))
    }
    assert touched == {}


def _touched(path: Path) -> set[str]:
    """The impure modules and functions that a file uses."""
    roots = {name.split(".")[0] for name in _imports(path)}
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return roots & IMPURE_MODULES | calls & {"open", "print", "input"}


def test_the_two_rules_find_what_breaks_them(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import asyncio\nfrom turnkeeper.http import app\nopen('x')\n")
    assert _imported_packages(path) == {"http"}
    assert "http" not in _allowed("core")
    assert _touched(path) == {"asyncio", "open"}


def test_the_table_names_what_there_is() -> None:
    named = {name for names in ROWS for name in names}
    assert named == {_package(path) for path in MODULES}


def test_contributing_names_the_packages_in_the_order_of_the_table() -> None:
    layout = (SRC.parent.parent / "CONTRIBUTING.md").read_text().split("```")[3]
    rows = {name: row for row, names in enumerate(ROWS) for name in names}
    order = [rows[word] for word in re.split(r"\s{2,}|\n", layout) if word in rows]
    assert order == sorted(order)
    assert len(order) == len(rows)


def test_a_package_has_a_bounded_number_of_modules() -> None:
    modules = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert {str(folder.relative_to(SRC)): count for folder, count in modules.items() if count > MAX_MODULES} == {}


def test_no_two_modules_have_a_class_of_one_name() -> None:
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
