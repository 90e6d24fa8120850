"""The order of the house: imports go one way, in no circle; files and functions are short; the page leads to each."""

import ast
import graphlib
import re
import subprocess
from pathlib import Path

import pytest

from tests.jobs import REPOSITORY

# What each package may import of the others: tools -> paddle_* -> harness -> program -> runlog, and
# scoring -> compliance -> runlog.
TRAINING = {"runlog", "program", "harness", "paddle_rn50", "paddle_hrnet"}
PUBLISHING = {"runlog", "compliance", "scoring"}
MAY = {
    "runlog": set(),
    "program": {"runlog"},
    "harness": {"runlog", "program"},
    "paddle_rn50": {"runlog", "program", "harness"},
    "paddle_hrnet": {"runlog", "program", "harness"},
    "launch": {"harness", "runlog"},
    "compliance": {"runlog"},
    "scoring": {"runlog", "compliance"},
    "tools": TRAINING | PUBLISHING,
}
# Packages that a command may do without, or that take long to load: these alone are imported where they are used.
HEAVY = {"jinja2", "paddle", "nvidia", "mpi4py", "mlperf_logging", "pynvml", "PIL", "matplotlib", "numpy", "scipy"}
HEAVY |= {"sklearn", "hashlib"}  # the last loads OpenSSL
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 450, 60
# Named by their rooms' rows of the page or by none: what no change begins with.
WITHOUT_A_ROW = {"program/ops.py", "runlog/errors.py"}


def tracked(*suffixes: str, but: tuple[str, ...] = ()) -> list[Path]:
    """The tracked files of those suffixes, in none of the folders `but`."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    names = (name for name in listed.splitlines() if name.endswith(suffixes) and not name.startswith(but))
    return [path for name in names if (path := REPOSITORY / name).is_file()]


def of_types_only(tree: ast.Module) -> set[ast.AST]:
    """What stands below `if TYPE_CHECKING:`."""
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def imports(tree: ast.AST) -> list[tuple[ast.stmt, str]]:
    """(statement, dotted name) of all imports below `tree`; a name that is imported may be a module, too."""
    found: list[tuple[ast.stmt, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module
            found += [(node, f"{node.module}.{alias.name}") for alias in node.names]
    return found


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each of the product's modules, by its dotted name."""
    paths = (path.relative_to(REPOSITORY) for path in tracked(".py"))
    product = {path: ast.parse((REPOSITORY / path).read_text()) for path in paths if path.parts[0] in MAY}
    found = {".".join(p.with_suffix("").parts).removesuffix(".__init__"): tree for p, tree in product.items()}
    assert len(found) > 60
    return found


def test_packages_import_one_way(trees: dict[str, ast.Module]) -> None:
    """For types too, which is a dependence as well."""
    wrong = []
    for module, tree in trees.items():
        package = module.partition(".")[0]
        forbidden = set(MAY) - MAY[package] - {package}
        wrong += [f"{module}:{n.lineno}: {name}" for n, name in imports(tree) if name.partition(".")[0] in forbidden]
    assert wrong == []


def test_no_modules_import_each_other(trees: dict[str, ast.Module]) -> None:
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        skipped = of_types_only(tree)
        named = [name for node, name in imports(tree) if node not in skipped]
        wanted = {name if name in trees else name.rpartition(".")[0] for name in named}
        graph[module] = {name for name in wanted if name in trees and name != module}
    graphlib.TopologicalSorter(graph).prepare()  # its error has the circle's modules


def test_functions_import_only_heavy_packages(trees: dict[str, ast.Module]) -> None:
    wrong = []
    for module, tree in trees.items():
        inside = {(node.lineno, name) for function in functions(tree) for node, name in imports(function)}
        wrong += [f"{module}:{line}: {name}" for line, name in sorted(inside) if name.partition(".")[0] not in HEAVY]
    assert wrong == []


def test_no_product_code_imports_a_mock(trees: dict[str, ast.Module]) -> None:
    assert [m for m, tree in trees.items() for _, name in imports(tree) if name.startswith("unittest")] == []


def test_no_file_is_long() -> None:
    files = tracked(".py", ".sh", ".sub", ".html", ".css", ".md.j2")
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in files}
    assert "launch/nodes.py" in lengths and "run_and_time.sh" in lengths
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_function_is_long(trees: dict[str, ast.Module]) -> None:
    long = [
        f"{module}:{node.lineno}: {node.name}"
        for module, tree in trees.items()
        for node in functions(tree)
        if (node.end_lineno or 0) - node.lineno >= MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


def named(page: str) -> set[str]:
    """Paths that the page has in backticks, with a star for what it leaves open, as `config_<SYSTEM>.sh`."""
    words = {word for code in re.findall(r"`([^`\n]+)`", page) for word in code.split()}
    paths = {word for word in words if re.fullmatch(r"[\w<>*./-]+", word) and ("/" in word or word.endswith(".sh"))}
    return {re.sub(r"<\w+>", "*", path) for path in paths}


def test_each_path_that_the_page_names_is_there() -> None:
    paths = named((REPOSITORY / "docs" / "architecture.md").read_text())
    assert len(paths) > 60
    there = {path for path in paths for place in (".", "launch", "tests") if list((REPOSITORY / place).glob(path))}
    assert paths - there == set()


def test_each_module_of_the_training_half_is_named() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    for room in ("harness", "program", "runlog", "tools", "launch"):
        for path in sorted((REPOSITORY / room).glob("*.py")):
            name = path.relative_to(REPOSITORY).as_posix()
            found = re.search(rf"\b{re.escape(path.name)}\b", page)
            assert found or path.stem.startswith("__") or name in WITHOUT_A_ROW, name
