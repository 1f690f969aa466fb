"""The part of ``centaurus demo`` that needs torch: plan, run and stream a layer and a network."""

from __future__ import annotations

from typing import Any

from centaurus.cli import output

NETWORK = "hybrid"
RATE = 16_000


def run(quiet: bool) -> dict[str, Any]:
    """Plan and train a layer for one step, then stream a denoiser piece by piece and compare with the whole."""
    import torch

    torch.manual_seed(0)
    return {"layer": _layer(quiet), "network": _network(quiet)}


def _layer(quiet: bool) -> dict[str, Any]:
    import torch

    import centaurus as ct

    layer = ct.SSM("bottleneck", in_channels=16, out_channels=32, states=256, substates=16)
    u = torch.randn(32, 16, 2048)
    plan = layer.plan(batch=32, length=2048)
    layer(u).square().mean().backward()
    if not quiet:
        output.show("A bottleneck layer, 16 to 32 channels with 256 × 16 states, at batch 32 × 2048 samples:\n")
        output.show(f"{plan}\n")
    return {"plan": plan.json()}


def _network(quiet: bool) -> dict[str, Any]:
    import torch

    import centaurus as ct

    net = ct.denoiser(NETWORK).eval()
    report = ct.count(net, rate=RATE)
    audio = torch.randn(1, 1, RATE)
    with torch.inference_mode():
        whole = net(audio)
    live = ct.Stream(net)
    pieces = [*(live(piece) for piece in audio.split(160, dim=-1)), live.flush()]
    error = float((torch.cat(pieces, -1) - whole).abs().max() / whole.abs().max())
    if not quiet:
        output.show(
            f"denoiser/{NETWORK} (not trained): {report.parameters:,} parameters, "
            f"{report.flops_per_second / 1e6:.0f} MFLOPs/s, latency {1000 * net.hop / RATE:g} ms.\n"
            f"One second in pieces of 10 ms differs from the whole signal at once by at most {error:.1e} of the peak."
        )
    return {"count": report.json(), "audio_seconds": 1.0, "relative_error": error}
