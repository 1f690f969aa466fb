"""The public names: read by type checkers, and by lazy_loader when a name is first used."""

from . import nn as nn
from .export.c import export_c as export_c
from .export.write import export_onnx as export_onnx
from .kernels.program import temporal_einsum as temporal_einsum
from .layer import Layer as Layer
from .layer import reset as reset
from .models.build import classifier as classifier
from .models.build import denoiser as denoiser
from .models.build import recognizer as recognizer
from .models.io import load as load
from .models.io import save as save
from .models.network import count as count
from .models.network import verify as verify
from .nn.stream import Stream as Stream
from .planner.device import Device as Device
from .planner.plan import Plan as Plan
from .planner.search import plan_expression as plan_expression
from .runtime.denoise import denoise as denoise
from .runtime.session import spot as spot
from .runtime.session import transcribe as transcribe
from .ssm.layer import SSM as SSM
from .ssm.selective import S6 as S6
from .train.optim import parameter_groups as parameter_groups

__version__: str
