"""Make the ONNX files and WebAssembly modules that ship from the safetensors beside them: ``make models``.

A model's card is the Markdown file of the same name; its text without the front matter is stored in the ONNX file.
Modules need clang and lld; without them the existing ones stay. ``python scripts/models.py NAME …`` makes only these.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from centaurus.export.c import export_wasm, find_clang
from centaurus.export.write import export_and_compare
from centaurus.models import load_network, shipped
from centaurus.runtime.measure import read_card

MOST_BYTES = 6_500_000
WITHOUT_MODULE = ("denoise-16k-live", "denoise-16k-raw", "kws-10-raw", "kws-30-raw")


def main() -> None:
    """Export every shipped model, each compared with torch before it replaces the one that is there."""
    folder = Path(str(files("centaurus") / "pretrained"))
    for name in sys.argv[1:] or shipped():
        _, text = read_card(folder / f"{name}.md")
        made = export_and_compare(load_network(name), folder / f"{name}.onnx", name=name, card=text)
        size = made.path.stat().st_size
        assert size < MOST_BYTES, f"{made.path} has {size} bytes, {MOST_BYTES} may ship"
        print(f"{made.path.name}: {size / 1e6:.2f} MB, off by {made.difference:.0e} of the largest value")
        if find_clang() is not None and name not in WITHOUT_MODULE:
            module = folder / f"{name}.wasm"
            export_wasm(load_network(name), module, name=name)
            print(f"{module.name}: {module.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
