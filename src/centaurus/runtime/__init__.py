"""Run exported models on files, pipes and devices with numpy and onnxruntime alone."""

from centaurus.runtime.denoise import Denoiser, denoise
from centaurus.runtime.modelfile import Settings
from centaurus.runtime.session import Session, SessionError
from centaurus.runtime.spot import Spotter, spot
from centaurus.runtime.transcribe import Transcriber, transcribe

__all__ = [
    "Denoiser",
    "Session",
    "SessionError",
    "Settings",
    "Spotter",
    "Transcriber",
    "denoise",
    "spot",
    "transcribe",
]
