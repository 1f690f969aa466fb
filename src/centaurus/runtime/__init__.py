"""Run exported models on files, pipes and devices with numpy and onnxruntime alone."""

from centaurus.runtime.denoising import Denoiser, denoise
from centaurus.runtime.session import Session, SessionError
from centaurus.runtime.settings import Settings
from centaurus.runtime.spotting import Spotter, spot
from centaurus.runtime.transcribing import Transcriber, transcribe

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
