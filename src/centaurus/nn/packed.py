"""Tensors and a few words about them as bytes: the safetensors format, which holds data and no code."""

from __future__ import annotations

import json
from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as save_bytes
from torch import Tensor


def pack(tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> bytes:
    """Bytes of these tensors and words."""
    own = {name: x.detach().to("cpu", copy=True).contiguous() for name, x in tensors.items()}
    return save_bytes(own, metadata=dict(words))


def unpack(data: bytes, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and words of such bytes; ``name`` says in an error what was being read."""
    try:
        tensors = load(bytes(data))
    except SafetensorError as error:
        raise ValueError(f"{name} is not a whole safetensors file ({len(data)} bytes): {error}") from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, dict(header.get("__metadata__", {}))
