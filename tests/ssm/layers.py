"""The layers that the tests of this folder run over: every topology, equations of a user's own, and S6."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from hypothesis import settings
from torch import Tensor

from centaurus.layer import Layer
from centaurus.ssm import S6, SSM
from centaurus.ssm.kernel import DISCRETIZATIONS

NAMED: dict[str, dict[str, int]] = {
    "depthwise": {"in_channels": 3, "states": 2},
    "separable": {"in_channels": 3, "out_channels": 2, "states": 2},
    "grouped": {"in_channels": 4, "out_channels": 6, "groups": 2, "states": 2},
    "pointwise": {"in_channels": 3, "out_channels": 2, "states": 6},
    "bottleneck": {"in_channels": 3, "out_channels": 2, "states": 5, "substates": 2},
    "full": {"in_channels": 3, "out_channels": 2, "states": 2},
}
OWN: dict[str, dict[str, int]] = {
    "u_bit K_it -> y_bit": {"i": 3},  # nothing but modes
    "u_bit B_nmi K_nmt C_jnm -> y_bjt": {"i": 3, "n": 2, "m": 2, "j": 2},
    "u_bhit B_hni K_hnt C_hjn -> y_bhjt": {"h": 2, "i": 2, "n": 2, "j": 3},  # heads
    "u_bit E_n K_int M_ji F_in -> y_bjt": {"i": 3, "n": 2, "j": 2},  # two weights
    "u_bit B_ni E_nm F_n K_nmt C_jn M_kj -> y_bkt": {"i": 2, "n": 3, "m": 2, "j": 2, "k": 3},  # two operands after
    "u_bct K_nt C_jn -> y_bjt": {"c": 2, "n": 3, "j": 2},  # channels that are only summed
    "u_bit B_pi D_np K_nt C_jn -> y_bjt": {"i": 3, "p": 2, "n": 3, "j": 2},  # two operands before
}


def complex_allowed(topology: str, complex: bool) -> bool:
    """One complex operand on each side of the state is the most there can be."""
    return not (complex and topology.startswith("u_bit B_pi D_np"))


def random_ssm(topology: str, complex: bool = False, discretization: str = "simple", seed: int = 0) -> SSM:
    """A double-precision layer away from its initial values, with modes that decay within a short signal."""
    torch.manual_seed(seed)
    if topology in NAMED:
        layer = SSM(topology, **NAMED[topology], complex=complex, discretization=discretization)
    else:
        layer = SSM(topology, sizes=OWN[topology], complex=complex, discretization=discretization)
    layer = layer.double()
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(0.3 * torch.randn_like(p))
        layer.log_dt.add_(1.0)
    return layer


def kinds() -> list[tuple[str, Callable[[], Layer], int]]:
    """(name, how to build it, input channels) of every layer."""
    layers: list[tuple[str, Callable[[], Layer], int]] = []
    for name in [*NAMED, *OWN]:
        for complex in (False, True):
            if not complex_allowed(name, complex):
                continue
            build = partial(random_ssm, name, complex)
            layers.append((name + " complex" * complex, build, build().in_channels))
    return [*layers, ("S6", partial(S6, 3, states=4), 3), ("S6 with a mixer", partial(S6, 3, 2, states=4), 3)]


TIGHT = 1e-9  # largest relative error in fp64: values, states and gradients
few = settings(max_examples=8, derandomize=True, deadline=None)
TOPOLOGIES = [(name, complex) for name in [*NAMED, *OWN] for complex in (False, True) if complex_allowed(name, complex)]

RULES = [(*case, rule) for case in TOPOLOGIES for rule in DISCRETIZATIONS if rule == "simple" or case[0] in NAMED]


def noise(layer: Layer, channels: int, batch: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """A signal, and a state to start from, that both require gradients."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(batch, channels, length, generator=generator, dtype=torch.float64)
    state = layer.init_state(batch)
    assert isinstance(state, Tensor)
    return u.requires_grad_(), torch.randn(state.shape, generator=generator, dtype=torch.float64).requires_grad_()
