"""Export networks as a self-contained ONNX file with explicit states, as C or as WebAssembly."""

from centaurus.export.write import export_onnx

__all__ = ["export_onnx"]
