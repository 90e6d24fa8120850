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
HEAVY |= {"sklearn", "argcomplete", "hashlib"}  # the last loads OpenSSL
MAX_LINES, MAX_LINES_OF_A_FUNCTION = 450, 55  # without docstrings: they explain, and are not code to hold in mind
# Named by their rooms' rows of the page or by none: what no change begins with.
WITHOUT_A_ROW = {"program/arrays.py", "program/ops.py", "runlog/errors.py"}


def tracked(*suffixes: str, but: tuple[str, ...] = ()) -> list[Path]:
    """The tracked files of those suffixes, in none of the folders `but`."""
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    names = (name for name in listed.splitlines() if name.endswith(suffixes) and not name.startswith(but))
    return [path for name in names if (path := REPOSITORY / name).is_file()]


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


def dotted(path: Path) -> str:
    """Return the dotted name of the module in a file, whose path counts from the repository."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each of the product's modules, by its dotted name."""
    paths = (path.relative_to(REPOSITORY) for path in tracked(".py"))
    product = {path: ast.parse((REPOSITORY / path).read_text()) for path in paths if path.parts[0] in MAY}
    found = {dotted(path): tree for path, tree in product.items()}
    assert len(found) > 60
    return found


def test_packages_import_one_way(trees: dict[str, ast.Module]) -> None:
    """For types too, which is a dependence as well."""
    wrong = []
    for module, tree in trees.items():
        package = module.partition(".")[0]
        forbidden = set(MAY) - MAY[package] - {package}
        wrong += [f"{module}:{n.lineno}: {name}" for n, name in imports(tree) if name.partition(".")[0] in forbidden]
    assert wrong == [], "docs/architecture.md says which folder may import which"


def circle(trees: dict[str, ast.Module]) -> list[str]:
    """Return the modules of a circle of imports, the first one again at the end; none without a circle.

    Imports for types count, and imports within functions: who reads a module of a circle has to read all.
    """
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        named = [name for _, name in imports(tree)]
        wanted = {name if name in trees else name.rpartition(".")[0] for name in named}
        graph[module] = {name for name in wanted if name in trees and name != module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_modules_import_each_other(trees: dict[str, ast.Module]) -> None:
    """In any room, tests and benchmarks included."""
    rooms = ("benchmarks", "tests")
    others = [path.relative_to(REPOSITORY) for path in tracked(".py") if path.relative_to(REPOSITORY).parts[0] in rooms]
    assert len(others) > 60
    all_trees = trees | {dotted(path): ast.parse((REPOSITORY / path).read_text()) for path in others}
    assert circle(all_trees) == [], "each imports the next: move what two of them share to a module of its own"


@pytest.mark.parametrize(
    ("imports_of_b", "has_circle"),
    [
        ("import a", True),
        ("from a import name", True),
        ("if TYPE_CHECKING:\n    from a import name", True),
        ("def f():\n    from a import name", True),
        ("import c", False),
    ],
)
def test_a_circle_is_found(imports_of_b: str, has_circle: bool) -> None:
    sources = {"a": "from b import name", "b": imports_of_b, "c": ""}
    found = circle({module: ast.parse(source) for module, source in sources.items()})
    assert set(found) == ({"a", "b"} if has_circle else set())


def test_functions_import_only_heavy_packages(trees: dict[str, ast.Module]) -> None:
    wrong = []
    for module, tree in trees.items():
        inside = {(node.lineno, name) for function in functions(tree) for node, name in imports(function)}
        wrong += [f"{module}:{line}: {name}" for line, name in sorted(inside) if name.partition(".")[0] not in HEAVY]
    assert wrong == [], "import these at the top of the module: only HEAVY packages are imported where they are used"


def test_no_product_code_imports_a_mock(trees: dict[str, ast.Module]) -> None:
    assert [m for m, tree in trees.items() for _, name in imports(tree) if name.startswith("unittest")] == []


def docstring_lines(tree: ast.AST) -> int:
    """Count the lines of all docstrings in a tree."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node):
            docstring = node.body[0]
            count += (docstring.end_lineno or 0) - docstring.lineno + 1
    return count


def test_no_file_is_long() -> None:
    lengths = {}
    for path in tracked(".py", ".sh", ".sub", ".html", ".css", ".md.j2"):
        text = path.read_text()
        lines = len(text.splitlines())
        if path.suffix == ".py":
            lines -= docstring_lines(ast.parse(text))
        lengths[str(path.relative_to(REPOSITORY))] = lines
    assert "launch/nodes.py" in lengths and "run_and_time.sh" in lengths
    too_long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert too_long == {}, f"over {MAX_LINES} lines without docstrings: move a subject to a file of its own"


def test_no_function_is_long(trees: dict[str, ast.Module]) -> None:
    long = [
        f"{module}:{node.lineno}: {node.name}"
        for module, tree in trees.items()
        for node in functions(tree)
        if (node.end_lineno or 0) - node.lineno - docstring_lines(node) >= MAX_LINES_OF_A_FUNCTION
    ]
    assert long == [], f"over {MAX_LINES_OF_A_FUNCTION} lines without docstring: make two of it"


def named(page: str) -> set[str]:
    """Paths that the page has in backticks, with a star for what it leaves open, as `config_<SYSTEM>.sh`."""
    words = {word for code in re.findall(r"`([^`\n]+)`", page) for word in code.split()}
    paths = {word for word in words if re.fullmatch(r"[\w<>*./-]+", word) and ("/" in word or word.endswith(".sh"))}
    return {re.sub(r"<\w+>", "*", path) for path in paths}


def test_each_path_that_the_page_names_is_there() -> None:
    paths = named((REPOSITORY / "docs" / "architecture.md").read_text())
    assert len(paths) > 60
    there = {path for path in paths for place in (".", "launch", "tests") if list((REPOSITORY / place).glob(path))}
    assert paths - there == set(), "docs/architecture.md names files that are not there"


def test_each_module_of_the_training_half_is_named() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    for room in ("harness", "program", "runlog", "tools", "launch"):
        for path in sorted((REPOSITORY / room).glob("*.py")):
            name = path.relative_to(REPOSITORY).as_posix()
            found = re.search(rf"\b{re.escape(path.name)}\b", page)
            is_left_out = path.stem.startswith("__") or name in WITHOUT_A_ROW
            assert found or is_left_out, f"{name}: say in docs/architecture.md what it is for"


# ---- how a line reads

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
WITHOUT_A_SUBJECT = {"As", "Likewise", "Of", "Same", "That", "Those", "What", "Whose"}
# Modules that were written before these rules. Nothing joins this list, and a module that keeps the rules leaves it.
NOT_PLAIN_YET: set[str] = set()


def holds(node: ast.AST, kinds: type[ast.AST] | tuple[type[ast.AST], ...]) -> bool:
    """Return whether a node of these kinds stands inside another one."""
    return any(isinstance(inner, kinds) for inner in ast.walk(node) if inner is not node)


def is_text(node: ast.AST) -> bool:
    """Return whether a node is a text, a tuple or a list as it stands."""
    is_string = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_string or isinstance(node, ast.JoinedStr | ast.Tuple | ast.List)


def is_condition(node: ast.AST) -> bool:
    """Return whether a node is a bool by its form."""
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    is_bool = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bool"
    return is_not or is_bool or isinstance(node, ast.Compare | ast.BoolOp)


def folded(node: ast.AST) -> str:
    """Return what a node folds into one expression that a reader must unfold; empty where it is plain."""
    if isinstance(node, COMPREHENSIONS):
        if len(node.generators) > 1 or holds(node, COMPREHENSIONS):
            return "a comprehension with two `for`, or inside another"
        if holds(node, ast.NamedExpr):
            return "a walrus in a comprehension"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right)
        if any(is_text(side) for side in sides) and any(is_condition(side) for side in sides):
            return "a text, tuple or list times a bool"
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.GeneratorExp)
    ):
        return "names unpacked from a generator"
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) >= 4:
        return "a bare tuple of four or more returned"
    return ""


def not_plain(tree: ast.Module) -> list[str]:
    """List the folded expressions of a module, and the docstrings that have no subject."""
    breaches = []
    for node in ast.walk(tree):
        reason = folded(node)
        if reason:
            breaches.append(f"{getattr(node, 'lineno', 1)}: {reason}")
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node) or ""
            first_word = docstring.partition(" ")[0].rstrip(",.:")
            if first_word in WITHOUT_A_SUBJECT or docstring.startswith("The same"):
                breaches.append(f"{getattr(node, 'lineno', 1)}: a docstring without a subject: {docstring[:40]}")
    return breaches


def test_a_module_folds_no_thoughts_and_its_docstrings_have_a_subject(trees: dict[str, ast.Module]) -> None:
    breaches = {module: not_plain(tree) for module, tree in trees.items()}
    new = [
        f"{module}:{breach}" for module, found in breaches.items() if module not in NOT_PLAIN_YET for breach in found
    ]
    assert new == [], "one thought a statement; a docstring begins with its subject or verb"
    assert {module for module in NOT_PLAIN_YET if not breaches.get(module)} == set(), (
        "these are plain now: take them out"
    )


def documented_arguments(docstring: str) -> list[str]:
    """Return the names that the section `Args:` of a docstring describes, in its order."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)*)", docstring + "\n", re.MULTILINE)
    if section is None:
        return []
    return re.findall(r"^ {4}\*{0,2}(\w+):", section[1], re.MULTILINE)


def test_a_docstring_with_a_section_of_arguments_describes_each_and_no_other(trees: dict[str, ast.Module]) -> None:
    wrong = []
    described = 0
    for module, tree in trees.items():
        for node in functions(tree):
            documented = documented_arguments(ast.get_docstring(node) or "")
            described += bool(documented)
            arguments = node.args
            given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            given += [argument for argument in (arguments.vararg, arguments.kwarg) if argument]
            names = {argument.arg for argument in given} - {"self", "cls"}
            if documented and (set(documented) != names or len(documented) != len(names)):
                wrong.append(f"{module}:{node.lineno}: {node.name}: {sorted(set(documented) ^ names)}")
    assert described
    assert wrong == [], "describe in `Args:` each argument once and no other: these differ"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("[x for y in z for x in y]", "two `for`"),
        ("[[x for x in y] for y in z]", "inside another"),
        ("[y for x in z if (y := x)]", "walrus"),
        ("'s' * (n > 1)", "times a bool"),
        ("bool(n) * ('a', 'b')", "times a bool"),
        ("a, b = (f(x) for x in z)", "unpacked"),
        ("def f():\n    return 1, 2, 3, 4", "bare tuple"),
        ('def f():\n    """What it is."""', "without a subject"),
        ('def f():\n    """Return it."""\n    return [x for x in z], "s" * 3', ""),
    ],
)
def test_the_rules_find_what_they_are_for(source: str, reason: str) -> None:
    found = "; ".join(not_plain(ast.parse(source)))
    assert reason in found and bool(reason) == bool(found)
