"""Regenerate what the documentation takes from elsewhere: ``python scripts/docs.py`` (or ``make docs``).

The file tree of docs/architecture.md has a line for each file, the first of its docstring. A figure is enclosed in two
comments that name its JSON file, so that no page can contradict another:

    <!--figure models/kws-30-raw.json accuracy.0 {:.1%}-->93.9%<!--/figure-->

The path is relative to docs/; its parts are keys, places in a list, or ``[key=value]`` for the entry that has it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "centaurus"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((SOURCE / "pretrained").glob("*.md"))]
BEGIN, END = "<!-- tree: python scripts/docs.py -->\n", "<!-- end of tree -->"
FIGURE = re.compile(
    r"<!--figure (?P<file>\S+) (?P<path>[^{}<>]+?) (?P<form>\{[^{}]*\}[^<>-]*)-->.*?<!--/figure-->", re.DOTALL
)
STEP = re.compile(r"\[(?P<key>[^=\]]+)=(?P<value>[^\]]+)\]|(?P<name>[^.\[]+)")
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


def value(file: str, path: str) -> Any:
    """Return one value of a JSON file below docs/."""
    data = json.loads((DOCS / file).read_text(encoding="utf-8"))
    for step in STEP.finditer(path):
        if step["name"] is None:
            data = next(entry for entry in data if str(entry[step["key"]]) == step["value"])
        else:
            data = data[int(step["name"])] if isinstance(data, list) else data[step["name"]]
    return data


def with_figures(text: str) -> str:
    """Return a page with every figure as its JSON file has it."""

    def filled(match: re.Match[str]) -> str:
        shown = match["form"].format(value(match["file"], match["path"]))
        return f"<!--figure {match['file']} {match['path']} {match['form']}-->{shown}<!--/figure-->"

    updated, count = FIGURE.subn(filled, text)
    if count != text.count("<!--figure"):
        raise ValueError(f"{text.count('<!--figure')} figures begin, {count} can be read")
    return updated


def with_tree(text: str) -> str:
    """Return a page with the file tree where it has the marks of one."""
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: tree(), text, flags=re.DOTALL)


def main() -> None:
    """Rewrite the pages that have changed."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        updated = with_tree(with_figures(text))
        if updated != text:
            page.write_text(updated, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} is up to date now")


if __name__ == "__main__":
    main()
