"""Import directions, and constructs that no file of the library has: read from the source, without running it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "centaurus"
FILES = sorted(SOURCE.rglob("*.py"))

# What each part may import besides itself and `system` and `tasks`. A part is the first name below `centaurus`.
TENSORS = {"kernels", "layer", "native", "planner"}
ALLOWED = {
    "system": set(),
    "tasks": set(),
    "kernels": {"native", "planner"},
    "layer": set(),
    "verification": set(),
    "laws": {"layer", "verification"},
    "planner": set(),
    "native": set(),
    "ssm": TENSORS,
    "nn": TENSORS | {"ssm"},
    "models": TENSORS | {"ssm", "nn", "laws", "verification"},
    "audio": set(),
    "decode": set(),
    "data": {"audio", "decode"},
    "studio": {"planner", "runtime", "ssm"},
    "runtime": {"native", "audio", "decode", "verification"},
    "evaluation": {"audio", "data", "decode", "runtime"},
    "train": TENSORS | {"ssm", "nn", "models", "data", "audio", "decode"},
    "recipes": TENSORS | {"ssm", "nn", "models", "data", "audio", "decode", "train", "evaluation", "export"},
    "export": TENSORS | {"ssm", "nn", "models", "runtime"},
    "serve": {"decode", "runtime"},
}
TORCH_FREE = {"tasks", "evaluation", "planner", "system", "audio", "data", "decode", "runtime", "serve", "studio"}
HEAVY = {"torch", "numpy", "soundfile", "soxr", "onnxruntime", "safetensors", "matplotlib"}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def label(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def part(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules imported anywhere below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            base = node.module or ""
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_when_loaded(tree: ast.Module) -> Iterator[str]:
    """Modules imported by importing the file: outside functions, and not only for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield from imports(node)


def read(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def top(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=label)
def test_a_file_imports_only_what_lies_below_it(path: Path) -> None:
    own = part(path)
    if own in ("cli", "__init__", "__main__"):
        return
    assert own in ALLOWED, f"{own} has no place among the layers: give it one in this test and in docs/architecture.md"
    allowed = {own, "system", "tasks"} | ALLOWED[own]
    for module in imports(read(path)):
        if top(module) == "centaurus":
            below = module.split(".")[1]
            assert below in allowed, f"{label(path)} imports {module}, which lies beside it or above it"


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in TORCH_FREE], ids=label)
def test_torch_free_parts_do_not_import_torch(path: Path) -> None:
    assert "torch" not in {top(module) for module in imports(read(path))}


@pytest.mark.parametrize("path", [p for p in FILES if part(p) in ("cli", "__init__")], ids=label)
def test_the_command_line_loads_nothing_heavy(path: Path) -> None:
    for module in imports_when_loaded(read(path)):
        own = top(module) == "centaurus" and module.split(".")[1] in ("cli", "tasks", "__version__")
        assert own or top(module) not in HEAVY | {"centaurus"}, f"{label(path)} imports {module} when it is loaded"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_no_file_prints_pickles_or_sprawls(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = read(path)
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert part(path) == "cli" or not any(isinstance(f, ast.Name) and f.id == "print" for f in calls)
    modules = set(imports(tree)) - {"pickle.UnpicklingError"}  # an error to catch
    assert not {top(module) for module in modules} & PICKLES
    assert not any(ast.unparse(f) in ("torch.load", "torch.save") for f in calls)
    assert text.count("\n") <= 600, "more than 600 lines: perhaps two concepts"


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, centaurus, centaurus.planner, centaurus.cli.main; dir(centaurus); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_misspelt_public_name_suggests_the_right_one() -> None:
    code = "import centaurus; centaurus.denoizer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "has no attribute 'denoizer'. Did you mean: 'denoiser'?" in done.stderr
