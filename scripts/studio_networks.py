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

from centaurus.layer import Layer, state_tensors
from centaurus.models import build, count, load_network, names, shipped
from centaurus.nn.containers import Composite
from centaurus.nn.spectral import Analysis, Mel, Synthesis
from centaurus.ssm import EQUATIONS, S6, SSM
from centaurus.ssm.kernel import discretization

RATE = 16_000
TITLES = {"": "Keyword spotting", "denoiser": "Denoising", "recognizer": "Speech recognition"}  # by what is before /
MODES = 96  # points of a picture of modes
TIMES = 48  # points of a curve of memory
LONGEST = 8_192  # frames of an impulse response
INPUTS = 8  # channels that get an impulse
FLOOR = -60.0  # dB, where the curves of memory end


def main() -> None:
    """Write networks.json beside the studio's pages."""
    networks = [describe(name, build(name)) | {"group": TITLES[name.rpartition("/")[0]]} for name in names()]
    for name in shipped():
        net = load_network(name)
        networks.append(describe(name, net) | {"group": "Shipped, trained", "trained": list(trained(net))})
    path = Path(str(files("centaurus") / "studio" / "static" / "networks.json"))
    path.write_text(json.dumps({"rate": RATE, "networks": networks}, separators=(",", ":")) + "\n", encoding="utf-8")
    print(f"{path.name}: {len(networks)} networks, {path.stat().st_size / 1e3:.0f} kB")


def describe(name: str, net: Layer) -> dict[str, Any]:
    """Return the counts of a network, and its layers with a state in the order they run."""
    report = count(net, rate=RATE)
    return {
        "name": name,
        "parameters": report.parameters,
        "flops_per_second": rounded(report.flops_per_second),
        "state_floats": report.state_floats,
        "hop": report.hop,
        "latency": report.latency,
        "layers": [layer_row(layer, hertz) for layer, hertz in stateful(net)],
    }


def stateful(layer: Layer, hertz: Fraction = Fraction(RATE)) -> Iterator[tuple[Layer, Fraction]]:
    """Yield the state-space layers and spectral front ends below a layer, with the rate at which they run."""
    if isinstance(layer, SSM | S6 | Analysis | Synthesis | Mel):
        yield layer, hertz
    elif isinstance(layer, Composite):
        for part in layer.parts():
            below = hertz * part.ratio if part.hertz is None else part.hertz
            yield from stateful(part.layer, below)


def layer_row(layer: Layer, hertz: Fraction) -> dict[str, Any]:
    """Return a layer as a row: kind, rate of its input in Hz, channels in and out, and states (complex numbers)."""
    numbers = sum(x.numel() for x in state_tensors(layer.init_state(1)))
    row = {"rate": rounded(float(hertz)), "states": numbers}
    match layer:
        case Analysis():
            return row | {"kind": "spectra", "in": 1, "out": 2 * layer.bins}
        case Synthesis():
            return row | {"kind": "signal", "in": layer.window + 2, "out": 1}
        case Mel():
            return row | {"kind": "mel", "in": 2 * layer.bins, "out": layer.bands}
        case S6():
            return row | {"kind": "s6", "in": layer.in_channels, "out": layer.out_channels}
    assert isinstance(layer, SSM)
    return row | {
        "kind": layer.topology_name,
        "in": layer.in_channels,
        "out": layer.out_channels,
        "states": numbers // 2,
    }


def trained(net: Layer) -> Iterator[dict[str, Any]]:
    """Yield memory and modes of every layer of a trained network, and of the same layer as it is initialised."""
    for number, (layer, hertz) in enumerate(stateful(net), 1):
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
    """Return time constants (ms) and frequencies (Hz) of the modes, and the energy (dB) later than each time (ms)."""
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
        "hz": [rounded(folded(float(im)) * hertz / (2 * math.pi)) for _, im in modes],
        "t": times,
        "db": levels,
    }


def folded(angle: float) -> float:
    """Return the angle of a mode between 0 and π: what lies above half the rate is aliased below it."""
    return abs((angle + math.pi) % (2 * math.pi) - math.pi)


def memory(layer: SSM, hertz: float) -> tuple[list[float], list[float]]:
    """Return the energy of the impulse response after each time, relative to all of it."""
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
    """Return numbers of three digits, which are enough for a picture and keep the file small."""
    return float(f"{number:.3g}") if number < 1e5 else round(number)


if __name__ == "__main__":
    main()
