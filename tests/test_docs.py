"""Every Python block of the README and the documents runs, top to bottom, one document in one namespace."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import centaurus
from centaurus.runtime.measure import describe_shipped
from scripts.docs import with_figures

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?P<skip><!-- no-run -->\s*)?^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#)([^)#\s]+)[^)]*\)")


def blocks(path: Path) -> list[str]:
    """The document's Python, each block with the blank lines before it so that errors name the right line."""
    text = path.read_text(encoding="utf-8")
    matches = [match for match in BLOCK.finditer(text) if not match["skip"]]
    return ["\n" * text.count("\n", 0, match.start("code")) + match["code"] for match in matches]


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_document_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__document__"}
    for code in blocks(path):
        exec(compile(code, str(path), "exec"), namespace)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_within_the_tree_lead_somewhere(path: Path) -> None:
    missing = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()]
    assert not missing, f"{path.name} links to {missing}"


CARDS = sorted((ROOT / "src" / "centaurus" / "pretrained").glob("*.md"))
NAMED = re.compile(r"(?<![\w/.-])((?:bench|docs|examples|notebooks|scripts|src|tests)/[\w./-]*\w)")


@pytest.mark.parametrize("path", [*DOCUMENTS, *CARDS, ROOT / "CONTRIBUTING.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_text_names_exist(path: Path) -> None:
    missing = [name for name in NAMED.findall(path.read_text(encoding="utf-8")) if not (ROOT / name).exists()]
    assert not missing, f"{path.name} names {missing}"


def test_every_source_file_is_in_the_architecture() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = {path.name for path in (ROOT / "src").rglob("*.py")} - {"__init__.py", "__main__.py"}
    missing = sorted(name for name in names if not re.search(rf"\b{re.escape(name)}\b", tree))
    assert not missing, f"docs/architecture.md lacks {missing}: run python scripts/docs.py"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_figures_are_those_of_their_files(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert with_figures(text) == text, "run python scripts/docs.py"


def test_a_figure_follows_its_file() -> None:
    old = "<!--figure speed/networks.json networks[network=denoiser/hybrid].ratio.paper {:.1f}×-->9.9×<!--/figure-->"
    assert with_figures(old).endswith("-->4.2×<!--/figure-->")
    assert "-->4.2 times<" in with_figures(old.replace("{:.1f}×", "{:.1f} times"))
    with pytest.raises(ValueError, match="1 figures begin, 0 can be read"):
        with_figures(old.replace("{:.1f}", ".1f"))


def test_latencies_in_the_readme_are_those_of_the_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| \[([\w-]+)\]\(src/\S+\.md\) .* \| ([\d.]+) ms \|$", text, re.MULTILINE))
    assert set(rows) >= {model.name for model in describe_shipped() if model.default}
    latencies = {model.name: 1000 * model.latency for model in describe_shipped()}
    assert {name: float(shown) for name, shown in rows.items()} == {name: latencies[name] for name in rows}


@pytest.mark.parametrize("repository", ["", "https://example.org/x"])
def test_what_a_package_index_shows_has_no_relative_link(repository: str, monkeypatch: pytest.MonkeyPatch) -> None:
    interface = ModuleType("interface")
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    published = runpy.run_path(str(ROOT / "hatch_build.py"))["published"]
    text = published((ROOT / "README.md").read_text(encoding="utf-8"), repository)
    assert not LINK.findall(text)
    assert "<!--" not in text
    assert (f"]({repository}/blob/main/docs/speed.md)" in text) == bool(repository)


def test_pictures_are_small() -> None:
    pictures = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".png", ".svg")]
    assert pictures
    assert {path.name: size for path in pictures if (size := path.stat().st_size) > 200_000} == {}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs").rglob("*.json")), ids=lambda p: str(p.relative_to(ROOT / "docs"))
)
def test_json_is_strict(path: Path) -> None:
    """Python's reader takes NaN and Infinity, which JSON does not have."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{path.name} has {constant}")

    json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_every_public_name_is_in_the_api_reference() -> None:
    names = re.findall(r" as (\w+)$", (ROOT / "src/centaurus/__init__.pyi").read_text(encoding="utf-8"), re.MULTILINE)
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert [
        name for name in names if name != "nn" and not re.search(rf"^::: [\w.]+\.{name}$", page, re.MULTILINE)
    ] == []


PLANNING = {"Device", "Plan", "plan_expression", "temporal_einsum"}  # data, and what takes an einsum's own arguments


def test_help_names_every_argument_of_a_public_name() -> None:
    missing = []
    for name in sorted(set(centaurus.__all__) - PLANNING - {"nn"}):
        value = getattr(centaurus, name)
        arguments = set(inspect.signature(value).parameters) - {"args", "kwargs"}
        text = inspect.getdoc(value) or ""
        missing += [f"{name}: {word}" for word in sorted(arguments) if not re.search(rf"\b{word}\b", text)]
    assert not missing
