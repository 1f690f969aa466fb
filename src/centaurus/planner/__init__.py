"""The planner: choose the order and the domains (time, frequency) of a temporal einsum's contraction. No torch."""

from centaurus.planner.device import CPU, CUDA, Device
from centaurus.planner.expression import Expression, ExpressionError, parse
from centaurus.planner.plan import Plan, Step
from centaurus.planner.search import LimitError, enumerate_plans, plan_expression

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
