"""Appendix A of the paper: a direct term D u can be absorbed into memoryless states."""

from __future__ import annotations

import torch

from centaurus.ssm import SSM

CHANNELS, OUTPUTS, STATES = 3, 2, 5
MEMORYLESS = -60.0  # log of a decay that single and double precision both take for nothing beside one


def absorbed(layer: SSM, D: torch.Tensor, copies: torch.Tensor) -> SSM:
    """The layer with as many more states as ``copies`` has rows; these hold copies · u, and C has D beside it."""
    extra = copies.shape[0]
    wide = SSM("pointwise", CHANNELS, OUTPUTS, states=STATES + extra).double()
    with torch.no_grad():
        dt = torch.ones(extra, dtype=torch.float64)  # Δ of one: the simple rule weights a state's input by it
        wide.log_dt.copy_(torch.cat((layer.log_dt, dt.log())))
        wide.A_real.copy_(torch.cat((layer.A_real, torch.full((extra,), -MEMORYLESS, dtype=torch.float64))))
        wide.A_imag.copy_(torch.cat((layer.A_imag, torch.zeros(extra, dtype=torch.float64))))
        wide.B.copy_(torch.cat((layer.B, copies)))
        wide.C.copy_(torch.cat((layer.C, D), 1))
    return wide


@torch.no_grad()
def test_a_direct_term_is_absorbed_by_as_many_states_as_inputs() -> None:
    torch.manual_seed(0)
    layer = SSM("pointwise", CHANNELS, OUTPUTS, states=STATES).double()
    D = torch.randn(OUTPUTS, CHANNELS, dtype=torch.float64)
    u = torch.randn(2, CHANNELS, 200, dtype=torch.float64)
    expected = layer(u) + D @ u
    wide = absorbed(layer, D, torch.eye(CHANNELS, dtype=torch.float64))
    torch.testing.assert_close(wide(u), expected, rtol=1e-12, atol=1e-12)
    pieces, state = [], None
    for piece in u.split(7, -1):
        y, state = wide.step(piece, state)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, -1), expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_printed_matrix_of_ones_does_not_absorb_it() -> None:
    """Every row of ones copies the sum of the inputs: what comes out is of rank one, whatever C holds."""
    torch.manual_seed(0)
    layer = SSM("pointwise", CHANNELS, OUTPUTS, states=STATES).double()
    D = torch.randn(OUTPUTS, CHANNELS, dtype=torch.float64)
    u = torch.randn(2, CHANNELS, 200, dtype=torch.float64)
    wide = absorbed(layer, D, torch.ones(CHANNELS, CHANNELS, dtype=torch.float64))
    assert (wide(u) - layer(u) - D @ u).abs().max() > 0.1
    responses = (wide(u) - layer(u)).movedim(1, 0).reshape(OUTPUTS, -1)
    assert torch.linalg.matrix_rank(responses, tol=1e-6) == 1
