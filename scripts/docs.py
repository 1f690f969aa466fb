"""Regenerate the parts of the documentation that follow from the source: ``python scripts/docs.py``.

Today that is the file tree of docs/architecture.md, one line a file from the first line of its docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "centaurus"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- tree: python scripts/docs.py -->\n", "<!-- end of tree -->"
WIDTH = 28  # columns of the names


def purpose(path: Path) -> str:
    """Return the first line of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].removesuffix(".")


def lines(folder: Path, depth: int = 1) -> Iterator[str]:
    """Yield a line for every module and package below a folder."""
    for path in sorted(folder.iterdir(), key=lambda p: (p.is_dir(), p.name)):
        name = "  " * depth + path.name
        if path.is_dir() and (path / "__init__.py").is_file():
            yield f"{name + '/':<{WIDTH}}{purpose(path / '__init__.py')}"
            yield from lines(path, depth + 1)
        elif path.suffix == ".py" and not (path.name == "__init__.py" and depth > 1):
            yield f"{name:<{WIDTH}}{purpose(path)}"


def tree() -> str:
    """Return the file tree as a Markdown code block."""
    return "\n".join([BEGIN, "```text", "src/centaurus/", *lines(SOURCE), "```", "", END])


def main() -> None:
    """Write the tree into docs/architecture.md."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    updated = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: tree(), text, flags=re.DOTALL)
    ARCHITECTURE.write_text(updated, encoding="utf-8")


if __name__ == "__main__":
    main()
