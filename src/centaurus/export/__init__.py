"""Export networks: one self-contained ONNX file with explicit states, C or WebAssembly."""

from centaurus.export.write import export_onnx

__all__ = ["export_onnx"]
