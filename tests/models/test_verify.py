"""The report of the laws: for a correct network and for a broken one."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from centaurus.layer import State
from centaurus.models import verify
from centaurus.nn import Serial, SiLU
from centaurus.nn.layers import Stateless
from tests.models.small import narrow


class Reversed(Stateless):
    """Not causal at all."""

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return u.flip(-1), ()


def test_a_network_keeps_the_laws_and_its_own_parameters() -> None:
    net = narrow("recognizer/base").train()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    report = verify(net, hops=2)
    assert report.holds, str(report)
    assert net.training
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    assert str(report).endswith("all laws hold")
    assert max(map(len, str(report).splitlines())) <= 80
    data = json.loads(json.dumps(report.json()))
    assert data["holds"] is True
    assert {"name", "worst", "tolerance", "holds"} == set(data["laws"][0])


def test_a_broken_layer_is_reported() -> None:
    report = verify(Serial([SiLU(), Reversed()]), channels=2)
    assert not report.holds
    assert "BROKEN" in str(report)
    assert any(law.name.startswith("causal") and not law.holds for law in report.laws)
