"""From a network to a step in C for devices, plug-ins and WebAssembly."""

from centaurus.export.c.write import ExportedC, export_c, export_wasm
from centaurus.export.write import ExportError

__all__ = ["ExportError", "ExportedC", "export_c", "export_wasm"]
