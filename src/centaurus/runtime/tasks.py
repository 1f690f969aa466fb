"""A session for a task: the model's file must be one for it."""

from __future__ import annotations

import os

from centaurus.runtime.session import Session, SessionError

DOES = {"denoiser": "denoises", "classifier": "spots keywords", "recognizer": "transcribes"}


def open_for(task: str, model: str | os.PathLike[str], batch: int, threads: int) -> Session:
    """The session, or an error if the model does something else."""
    session = Session(model, batch=batch, threads=threads)
    found = session.settings.task
    if found != task:
        raise SessionError(
            f"{os.fspath(model)} is a {found}, which {DOES.get(found, 'does something else')}; a {task} is needed here"
        )
    return session
