"""From a network to one self-contained ONNX file with explicit states."""

from centaurus.export.write import export_onnx

__all__ = ["export_onnx"]
