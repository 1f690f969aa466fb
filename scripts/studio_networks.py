"""Write what the studio's network explorer shows: every network layer by layer, and what training did to its modes.

``make studio`` runs it after a shipped model has changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from centaurus.layer import Layer
from centaurus.models import build, count, load_network, names, shipped
from centaurus.nn.containers import Composite
from centaurus.ssm import EQUATIONS, S6, SSM
from centaurus.ssm.kernel import discretization

RATE = 16_000
TITLES = {"kws": "Keyword spotting", "denoiser": "Denoising", "recognizer": "Speech recognition"}
MODES = 96  # points of a picture of modes
TIMES = 48  # points of a curve of memory
LONGEST = 8_192  # frames of an impulse response
INPUTS = 8  # channels that get an impulse
FLOOR = -60.0  # dB, where the curves of memory end


def main() -> None:
    """Write networks.json beside the studio's pages."""
    networks = [describe(name, build(name)) | {"group": TITLES[group(name)]} for name in names()]
    for name in shipped():
        net = load_network(name)
        networks.append(describe(name, net) | {"group": "Shipped, trained", "trained": list(trained(net))})
    path = Path(str(files("centaurus") / "studio" / "static" / "networks.json"))
    path.write_text(json.dumps({"rate": RATE, "networks": networks}, separators=(",", ":")) + "\n")
    print(f"{path.name}: {len(networks)} networks, {path.stat().st_size / 1e3:.0f} kB")


def group(name: str) -> str:
    """The task that a table's name begins with."""
    return name.partition("/")[0] if "/" in name else name.partition("-")[0]


def describe(name: str, net: Layer) -> dict[str, Any]:
    """Counts of a network, and its layers with a state in the order they run."""
    report = count(net, rate=RATE)
    return {
        "name": name,
        "parameters": report.parameters,
        "flops_per_second": rounded(report.flops_per_second),
        "state_floats": report.state_floats,
        "hop": report.hop,
        "latency": report.latency,
        "layers": [layer_row(path, layer, hertz) for path, layer, hertz in stateful(net)],
    }


def stateful(layer: Layer, path: str = "", hertz: Fraction = Fraction(RATE)) -> Iterator[tuple[str, Layer, Fraction]]:
    """State-space layers below a layer, with the rate at which they run."""
    if isinstance(layer, SSM | S6):
        yield path, layer, hertz
    elif isinstance(layer, Composite):
        for part in layer.parts():
            below = hertz * part.ratio if part.hertz is None else part.hertz
            yield from stateful(part.layer, f"{path}.{part.name}".lstrip("."), below)


def layer_row(path: str, layer: Layer, hertz: Fraction) -> dict[str, Any]:
    """One layer as a row: kind, rate in Hz, channels in and out, complex states."""
    state = layer.init_state(1)
    assert isinstance(state, Tensor)
    kind = layer.topology_name if isinstance(layer, SSM) else "s6"
    assert isinstance(layer, SSM | S6)
    return {
        "kind": kind,
        "rate": rounded(float(hertz)),
        "in": layer.in_channels,
        "out": layer.out_channels,
        "states": state.numel() // 2 if isinstance(layer, SSM) else state.numel(),
    }


def trained(net: Layer) -> Iterator[dict[str, Any]]:
    """Memory and modes of every layer of a trained network, and of the same layer as it is initialised."""
    for number, (_, layer, hertz) in enumerate(stateful(net), 1):
        if not isinstance(layer, SSM):
            continue
        torch.manual_seed(0)
        text = EQUATIONS.get(layer.topology_name, layer.topology_name)
        new = SSM(
            text,
            sizes=dict(layer.topology.sizes),
            complex=layer.topology.complex,
            discretization=layer.discretization,
        )
        yield {
            "layer": number,
            "before": pictures(new, float(hertz)),
            "after": pictures(layer, float(hertz)),
        }


@torch.no_grad()
def pictures(layer: SSM, hertz: float) -> dict[str, Any]:
    """Time constants (ms) and frequencies (Hz) of the modes, and the energy (dB) later than each time (ms)."""
    log_dt = layer.log_dt.double()
    axes = [1 if i not in layer.topology.step_indices() else layer.topology.size[i] for i in layer.topology.modes]
    dt = torch.exp(log_dt).reshape(axes).expand_as(layer.A_real)
    decay = -torch.nn.functional.softplus(layer.A_real.double())
    log_a, _ = discretization(layer.discretization)(decay, layer.A_imag.double(), dt)
    modes = log_a.reshape(-1, 2)
    modes = modes[torch.linspace(0, len(modes) - 1, min(MODES, len(modes))).long()]
    times, levels = memory(layer, hertz)
    return {
        "ms": [rounded(-1e3 / (float(re) * hertz)) for re, _ in modes],
        "hz": [rounded(abs(float(im)) * hertz / (2 * math.pi)) for _, im in modes],
        "t": times,
        "db": levels,
    }


def memory(layer: SSM, hertz: float) -> tuple[list[float], list[float]]:
    """Energy of the impulse response after each time, against all of it."""
    inputs = min(INPUTS, layer.in_channels)
    u = torch.zeros(inputs, layer.in_channels, LONGEST, dtype=layer.log_dt.dtype)
    u[torch.arange(inputs), torch.linspace(0, layer.in_channels - 1, inputs).long(), 0] = 1.0
    energy = layer(u).double().square().sum((0, 1))
    left = energy.flip(0).cumsum(0).flip(0) / energy.sum().clamp_min(1e-30)
    level = 10 * torch.log10(left.clamp_min(1e-12))
    below = (level < FLOOR).nonzero()
    end = int(below[0]) if len(below) else LONGEST
    points = sorted({round(x) for x in torch.linspace(0, end - 1, TIMES).tolist()})
    return [rounded(1e3 * k / hertz) for k in points], [round(float(level[k]), 1) for k in points]


def rounded(number: float) -> float:
    """Three digits are enough for a picture, and keep the file small."""
    return float(f"{number:.3g}") if number < 1e5 else round(number)


if __name__ == "__main__":
    main()
