"""State-space layers as equations: planned contractions in training, exact streaming after it.

Names load when they are first used, so that ``import centaurus`` imports neither torch nor anything slow.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from centaurus.export.c import export_c as export_c
    from centaurus.export.write import export_onnx as export_onnx
    from centaurus.kernels.program import temporal_einsum as temporal_einsum
    from centaurus.layer import Layer as Layer
    from centaurus.layer import reset as reset
    from centaurus.models.checkpoint import load as load
    from centaurus.models.checkpoint import save as save
    from centaurus.models.classifier import classifier as classifier
    from centaurus.models.count import count as count
    from centaurus.models.denoiser import denoiser as denoiser
    from centaurus.models.recognizer import recognizer as recognizer
    from centaurus.models.verify import verify as verify
    from centaurus.nn.stream import Stream as Stream
    from centaurus.planner import Device as Device
    from centaurus.planner import Plan as Plan
    from centaurus.planner import plan_expression as plan_expression
    from centaurus.ssm import S6 as S6
    from centaurus.ssm import SSM as SSM

_HOMES = {
    "SSM": "centaurus.ssm",
    "S6": "centaurus.ssm",
    "Layer": "centaurus.layer",
    "reset": "centaurus.layer",
    "Stream": "centaurus.nn.stream",
    "temporal_einsum": "centaurus.kernels.program",
    "plan_expression": "centaurus.planner",
    "Plan": "centaurus.planner",
    "Device": "centaurus.planner",
    "classifier": "centaurus.models.classifier",
    "denoiser": "centaurus.models.denoiser",
    "recognizer": "centaurus.models.recognizer",
    "count": "centaurus.models.count",
    "verify": "centaurus.models.verify",
    "save": "centaurus.models.checkpoint",
    "export_c": "centaurus.export.c",
    "export_onnx": "centaurus.export.write",
    "load": "centaurus.models.checkpoint",
}
_EXTRAS = {
    "torch": ("torch", "safetensors"),
    "export": ("onnx", "onnxscript"),
    "train": ("accelerate", "tensorboard", "tokenizers", "jiwer"),
    "plot": ("matplotlib",),
    "eval": ("pesq", "pystoi", "speechmos"),
    "mic": ("sounddevice",),
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name from the module it lives in, once."""
    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        value = getattr(_module(name), name)
    else:
        raise AttributeError(f"module 'centaurus' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _module(name: str) -> Any:
    try:
        return import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        raise ImportError(what_to_install(error)) from error


def what_to_install(error: ModuleNotFoundError) -> str:
    """The error in words that name the extra which has the missing package."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in _EXTRAS.items():
        if package in packages:
            return f"{package} is needed for this and is not installed: pip install 'centaurus-ssm[{extra}]'"
    return str(error)


def _version() -> str:
    try:
        return metadata.version("centaurus-ssm")
    except metadata.PackageNotFoundError:
        return "0.0.0+source"
