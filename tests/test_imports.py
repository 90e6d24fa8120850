"""Imports go one way, in no circle, stand at the top of their file, and none is of a mock."""

import ast
import graphlib
from pathlib import Path

import pytest

from tests.test_limits import tracked

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


def modules(repository: Path) -> dict[str, Path]:
    """The product's modules by their dotted names."""
    paths = (path.relative_to(repository) for path in tracked(repository, ".py"))
    product = (path for path in paths if path.parts[0] in MAY)
    return {".".join(p.with_suffix("").parts).removesuffix(".__init__"): repository / p for p in product}


def of_types_only(tree: ast.Module) -> set[ast.AST]:
    """What stands below `if TYPE_CHECKING:`."""
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


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
def trees(repository: Path) -> dict[str, ast.Module]:
    """The syntax tree of each module."""
    found = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules(repository).items()}
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
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_functions_import_only_heavy_packages(trees: dict[str, ast.Module]) -> None:
    wrong = []
    for module, tree in trees.items():
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = {(node.lineno, name) for function in functions for node, name in imports(function)}
        wrong += [f"{module}:{line}: {name}" for line, name in sorted(inside) if name.partition(".")[0] not in HEAVY]
    assert wrong == []


def test_no_product_code_imports_a_mock(trees: dict[str, ast.Module]) -> None:
    assert [m for m, tree in trees.items() for _, name in imports(tree) if name.startswith("unittest")] == []
