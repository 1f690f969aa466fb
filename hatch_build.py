"""Build metadata that depend on where the project is published: its URLs, and absolute links in the README.

A package index shows the README without the files it links to. ``CENTAURUS_REPOSITORY=https://… python -m build`` makes
every link absolute and adds the project's URLs; without it links within the repository are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = "https://arxiv.org/abs/2501.13230"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?://|#)(?P<path>[^)\s]+)\)")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def published(readme: str, repository: str) -> str:
    """Return the README with absolute links to the files of a repository, or without such links if there is none."""

    def link(match: re.Match[str]) -> str:
        if not repository:
            return "" if match["image"] else match["text"]
        kind = "raw" if match["image"] else "blob"
        return f"{match['image']}[{match['text']}]({repository}/{kind}/main/{match['path']})"

    return LINK.sub(link, COMMENT.sub("", readme))


class CustomMetadataHook(MetadataHookInterface):
    """Sets ``readme`` and ``urls``."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("CENTAURUS_REPOSITORY", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": published(text, repository)}
        metadata["urls"] = {"Paper": PAPER}
        if repository:
            metadata["urls"] |= {
                "Repository": repository,
                "Issues": f"{repository}/issues",
                "Documentation": f"{repository}/tree/main/docs",
            }
