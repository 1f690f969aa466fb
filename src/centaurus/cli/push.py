"""``centaurus push``: a model to the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import typer

from centaurus.cli import output


def push(
    model: Annotated[str, typer.Argument(help="A .safetensors or .onnx file, or a shipped model's name.")],
    repository: Annotated[str, typer.Argument(metavar="USER/MODEL", help="Made if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
) -> None:
    """Upload a model to the Hugging Face Hub, with its card and its other form if they lie beside it.

    Others then use it as hf:USER/MODEL. Needs the package huggingface_hub and its token (hf auth login).
    """
    from centaurus import hub

    uploaded = hub.push(model, repository, private)
    output.show(f"Uploaded {', '.join(uploaded)}: use it as hf:{repository.removeprefix('hf:')}")
