"""Every count of the paper's networks: parameters exactly, FLOPs to the printed digits."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields, replace

import pytest
import torch

from centaurus.layer import Layer, State
from centaurus.models import DenoiserTable, Row, classifier, count, denoiser, recognizer
from centaurus.models.build import state_space
from centaurus.models.tables import DENOISERS as TABLES
from centaurus.nn import Pointwise, Serial
from centaurus.ssm import S6, SSM

KEYWORDS = {
    "hybrid": {2: (26_464, 10.48), 4: (99_408, 36.84), 8: (384_736, 137.24)},
    "pointwise": {2: (25_948, 8.68), 4: (98_296, 32.23), 8: (382_192, 123.92)},
    "full": {2: (41_824, 20.62), 4: (162_768, 80.17), 8: (642_016, 316.05)},
    "bottleneck": {2: (28_468, 13.32), 4: (103_336, 41.51), 8: (392_272, 142.48)},
    "separable": {2: (12_550, 3.56), 4: (44_192, 10.67), 8: (164_788, 37.20), 16: (635_228, 139.63)},
    "hybrid-complex": {2: (43_016, 17.68), 4: (165_216, 63.27), 8: (647_168, 238.23)},
}
KEYWORD_ROWS = [(f"kws-{name}-{w}", *expected) for name, widths in KEYWORDS.items() for w, expected in widths.items()]

DENOISERS = {
    "hybrid": (773_440, 336.9),
    "hybrid-conv": (778_192, 340.4),
    "separable": (638_340, 357.5),
    "s6": (726_180, 481.5),
    "bottleneck": (874_624, 1200.0),
    "pointwise": (833_664, 636.7),
    "full": (2_533_552, 963.8),
}

PARTS = ("encoder", "middle", "decoder", "output")
SEGMENT = 327_680 / 16_000
RECOGNIZERS = {"base": (12.436, 18.95), "ffn": (18.025, 26.20), "conv": (23.663, 33.56), "mamba": (29.955, 35.18)}


@pytest.mark.parametrize(("name", "parameters", "flops"), KEYWORD_ROWS)
def test_keyword_spotting(name: str, parameters: int, flops: float) -> None:
    report = count(classifier(name, classes=35))
    assert report.parameters == parameters
    assert round(report.flops_per_second / 1e6, 2) == flops


def test_the_papers_keyword_network() -> None:
    """0.378M parameters and 0.134 GFLOPs/s in its table of results, for ten classes and without the head."""
    net = classifier("kws-hybrid-8", classes=10)
    for convention, expected in (("table", 137.09), ("results", 133.9)):
        report = count(net, convention=convention)
        head = sum(row.flops_per_second for row in report.rows if row.name.startswith("head"))
        assert report.parameters == 378_336
        assert round((report.flops_per_second - head) / 1e6, 2 if convention == "table" else 1) == expected
        assert round(head / 1e6, 2) == 0.14


@pytest.mark.parametrize(("width", "floats"), [(2, 848), (4, 1824), (8, 4160)])
def test_state_of_the_hybrids(width: int, floats: int) -> None:
    report = count(classifier(f"kws-hybrid-{width}"))
    mean = 32 * width + 1
    assert report.state_floats == floats + mean
    assert sum(row.state_floats for row in report.rows) == report.state_floats


@pytest.mark.parametrize("name", DENOISERS)
def test_denoising(name: str) -> None:
    report = count(denoiser(name))
    assert (report.parameters, round(report.flops_per_second / 1e6, 1)) == DENOISERS[name]


def test_the_papers_denoiser() -> None:
    """0.51M parameters and 0.29 GFLOPs/s in its table of results: without the two middle blocks."""
    report = count(denoiser("hybrid-slim"), convention="results")
    assert (report.parameters, round(report.flops_per_second / 1e6, 1)) == (510_272, 293.0)


def test_the_papers_best_denoiser() -> None:
    """0.51M and 0.29 GFLOPs/s with causal convolution: without the two middle blocks too."""
    report = count(denoiser("hybrid-slim-conv"), convention="results")
    assert round(report.parameters / 1e6, 2) == 0.51
    assert (report.parameters, round(report.flops_per_second / 1e6, 1)) == (512_976, 296.2)


def test_the_papers_s6_has_no_weights_of_its_modes() -> None:
    """0.66M in its table of results: without E, with both factors of Δ, and one-channel layers as complex ones."""
    report = count(denoiser("s6-unweighted"))
    widths = [16, 32, 64, 96, 128, 256] * 2
    factors, rest = sum(h * h // 16 for h in widths), 4 * 64
    assert report.parameters == 650_404
    assert report.parameters + factors + rest == 662_724


def test_the_papers_separable_denoiser_is_complex() -> None:
    """0.71M in its table of results is the complex row; 0.39 GFLOPs/s are 10 HN a step in place of the row's 11."""
    table = TABLES["separable"]
    assert isinstance(table, DenoiserTable)
    rows = {name: tuple(replace(row, complex=True) for row in getattr(table, name)) for name in PARTS}
    report = count(denoiser(replace(table, **rows)))
    assert (report.parameters, round(report.flops_per_second / 1e6, 1)) == (714_372, 412.8)


def test_a_mamba_block_is_its_projections_and_an_s6_of_twice_the_channels() -> None:
    h, n = 32, 16
    layer = state_space(Row("mamba", 1, h, n), h, h)
    wide = 2 * h
    taps = 4 * wide
    assert count(layer).parameters == 6 * h * h + taps + 3 * wide * n + wide * wide // 16


def test_a_row_says_how_its_layer_is_discretized() -> None:
    layer = state_space(Row("pointwise", 1, 4, 8, discretization="zoh"), 4, 4)
    assert isinstance(layer, SSM)
    assert layer.discretization == "zoh"


@pytest.mark.parametrize("name", RECOGNIZERS)
def test_recognition(name: str) -> None:
    report = count(recognizer(name, vocabulary=40))
    result = round(report.parameters / 1e6, 3), round(report.flops_per_second * SEGMENT / 1e9, 2)
    assert result == RECOGNIZERS[name]


@pytest.mark.parametrize(("net", "hop"), [("denoiser", 256), ("classifier", 256), ("recognizer", 2560)])
def test_hop_and_latency(net: str, hop: int) -> None:
    made = {"denoiser": denoiser, "recognizer": lambda: recognizer(vocabulary=4)}
    report = count(made.get(net, lambda: classifier("kws-hybrid-2"))())
    assert (report.hop, report.latency) == (hop, hop)


def test_vocabulary_and_characters_are_listed_but_not_counted() -> None:
    few, many = count(recognizer("base", vocabulary=2, characters=2)), count(recognizer("base", vocabulary=9))
    assert few.parameters == many.parameters
    assert few.tensors < many.tensors
    assert {row.name for row in few.rows if not row.counted} >= {"vocabulary", "characters.last"}


def test_tensors_are_all_numbers_in_the_file() -> None:
    net = denoiser("hybrid-conv")
    assert count(net).tensors == sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("net", [denoiser(), classifier("kws-hybrid-complex-2"), recognizer("mamba", vocabulary=9)])
def test_a_report_prints_within_80_columns_and_as_json(net: Layer) -> None:
    report = count(net)
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= 80
    assert f"{report.parameters:,}" in str(report)
    data = json.loads(json.dumps(report.json()))
    assert data["parameters"] == report.parameters == sum(row["parameters"] for row in data["rows"] if row["counted"])
    assert {"tensors", "flops_per_second", "state_floats", "hop", "latency", "rate", "convention"} <= set(data)


def test_a_layer_and_the_rate_scale() -> None:
    layer = SSM("full", 2, 3, states=4)
    once, twice = count(layer, rate=8_000), count(layer, rate=16_000)
    assert once.parameters == 72
    assert twice.flops_per_second == 2 * once.flops_per_second == 216 * 16_000


def test_errors() -> None:
    class Own(Layer):
        def init_state(self, batch: int) -> State:
            return ()

        def run(self, u: torch.Tensor, state: State | None, keep: bool) -> tuple[torch.Tensor, State]:
            return u, ()

    with pytest.raises(TypeError, match="Own at '1' cannot be counted"):
        count(Serial([Pointwise(1, 1), Own()]))
    with pytest.raises(ValueError, match="'table' or 'results', got 'other'"):
        count(denoiser(), convention="other")


def test_a_row_carries_every_option_of_its_layer() -> None:
    elsewhere = {"in_channels", "out_channels", "topology", "sizes", "band", "device", "dtype"}
    options = {field.name for field in fields(Row)}
    for kind in (SSM, S6):
        assert set(inspect.signature(kind).parameters) - elsewhere <= options
    layer = state_space(Row("s6", 1, 6, 5, rank=3, weighted=False), 4, 6)
    assert isinstance(layer, S6)
    assert layer.arguments() | {"rank": 3, "weighted": False, "states": 5} == layer.arguments()
    wide = state_space(Row("mamba", 1, 4, 5, rank=2), 4, 4)
    assert [x.rank for x in wide.modules() if isinstance(x, S6)] == [2]
