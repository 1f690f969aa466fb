"""Models on the Hugging Face Hub: ``hf:user/model`` names one wherever a model is named, and ``push`` publishes one.

A repository holds ``model.safetensors`` for torch, ``model.onnx`` for the runtime, or both, and the card as README.md.
Files are only downloaded: what reads them checks them as it checks any other file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from centaurus.system import HUB, OutputError, download_model, extra, find_model

__all__ = ["download_model", "push"]

STEM = "model"
SUFFIXES = (".safetensors", ".onnx")
CARDS = ("{stem}.md", "card.md")  # beside a model, in this order


def push(model: str | os.PathLike[str], repository: str, private: bool = False) -> list[str]:
    """Upload a model's file, its other form and its card if they lie beside it; return the names in the repository.

    ``repository`` is ``user/model``; it is made if it does not exist. The token is the one that ``hf auth login``
    stored, or ``HF_TOKEN``.
    """
    hub = extra("huggingface_hub")
    sources = find_files(model)
    name = repository.removeprefix(HUB)
    with tempfile.TemporaryDirectory(prefix="centaurus-") as folder:
        for target, source in sources.items():
            shutil.copyfile(source, Path(folder) / target)
        api = hub.HfApi()
        try:
            api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Upload {Path(model).stem}")
        except Exception as error:  # those of the HTTP client have nothing in common
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise OutputError(f"could not be uploaded: {reason}", f"{HUB}{name}") from error
    return sorted(sources)


def find_files(model: str | os.PathLike[str]) -> dict[str, Path]:
    """Return what to upload by its name in the repository, for a model's file or the name of a shipped one."""
    path = find_model(model, SUFFIXES[-1])
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a model is a {' or '.join(SUFFIXES)} file")
    beside = {f"{STEM}{suffix}": path.with_suffix(suffix) for suffix in SUFFIXES}
    present = {name: file for name, file in beside.items() if file.is_file()}
    cards = [path.with_name(card.format(stem=path.stem)) for card in CARDS]
    card = next((card for card in cards if card.is_file()), None)
    return present if card is None else present | {"README.md": card}
