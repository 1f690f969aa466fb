"""The network of the keyword recipe: its window, and blocks that start tuned to their band."""

from __future__ import annotations

from dataclasses import replace

import torch

from centaurus.nn import Block
from centaurus.recipes.kws import configure, network
from centaurus.ssm import SSM
from centaurus.train.objectives import Classify


def test_tuned_blocks_cover_their_band_and_the_others_start_as_the_paper_says() -> None:
    settings = replace(configure(), network="kws-hybrid-2", tuned=2)
    torch.manual_seed(0)
    blocks = [block for block in network(settings, ["a", "b"]).modules() if isinstance(block, Block)]
    rate, highest = 16_000.0, []
    for block in blocks:
        assert isinstance(block.body, SSM)
        highest.append(
            float((block.body.A_imag * block.body.log_dt.exp().amax()).max().detach()) * rate / (2 * torch.pi)
        )
        rate /= block.hop
    assert [round(f) for f in highest[:2]] == [6000, 1600]
    untuned = [block for block in network(replace(settings, tuned=0), ["a", "b"]).modules() if isinstance(block, Block)]
    for one, other in zip(blocks[2:], untuned[2:], strict=True):
        torch.testing.assert_close(one.body.A_imag, other.body.A_imag)


def test_smoothed_labels_cost_a_certain_network_something() -> None:
    net = network(replace(configure(), network="kws-hybrid-2"), ["a", "b"])
    sure = torch.tensor([[9.0, -9.0]])
    batch = {"label": torch.tensor([0])}
    plain, smooth = (Classify(net, smoothing=s).term("cross_entropy", (sure,), batch) for s in (0.0, 0.1))
    assert float(plain) < 1e-6
    assert float(smooth) > 0.5
