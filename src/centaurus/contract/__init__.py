"""The planner: a temporal einsum in, the order and the way to compute it out. No torch here but in ``execute``."""

from centaurus.contract.device import CPU, CUDA, Device
from centaurus.contract.expression import Expression, ExpressionError, parse
from centaurus.contract.plan import Plan, Step
from centaurus.contract.solve import LimitError, enumerate_plans, plan_expression

__all__ = [
    "CPU",
    "CUDA",
    "Device",
    "Expression",
    "ExpressionError",
    "LimitError",
    "Plan",
    "Step",
    "enumerate_plans",
    "parse",
    "plan_expression",
]
