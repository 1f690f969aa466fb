"""Run exported models on files, pipes and devices with numpy and onnxruntime alone."""

from centaurus.runtime.denoise import Denoiser, denoise
from centaurus.runtime.modelfile import Settings
from centaurus.runtime.session import Session, SessionError, Spotter, Transcriber, spot, transcribe

__all__ = ["Denoiser", "Session", "SessionError", "Settings", "Spotter", "Transcriber", "denoise", "spot", "transcribe"]
