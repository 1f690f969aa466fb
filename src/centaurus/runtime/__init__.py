"""Run exported models on files, pipes and devices with numpy and onnxruntime alone."""

from centaurus.runtime.session import Session, SessionError
from centaurus.runtime.settings import Settings

__all__ = ["Session", "SessionError", "Settings"]
