"""Every named network, made narrow, keeps every law; latency is what is declared; heads and windows work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from centaurus.laws import randomized
from centaurus.models import Row, SpotterTable, build, classifier, count, denoiser, load, names, recognizer, save
from centaurus.models.network import plan_layers
from centaurus.models.tables import CLASSIFIERS, DENOISER, RECOGNIZER, SELECTIVE
from centaurus.nn import DCBlock, Stream
from centaurus.ssm import S6, SSM
from tests.check_layer import check_layer
from tests.models.small import FAMILIES, narrow


@pytest.mark.parametrize("name", FAMILIES)
def test_laws(name: str) -> None:
    torch.manual_seed(0)
    check_layer(narrow(name).body, 1, hops=3 if "hybrid" in name else 2)


@pytest.mark.parametrize("name", ["kws-hybrid-2", "denoiser/hybrid", "recognizer/conv"])
def test_latency_is_the_hop(name: str) -> None:
    """No output depends on a later hop, and the first output of a hop does depend on its last sample."""
    net = randomized(narrow(name).double().eval())
    u = torch.randn(1, 1, 3 * net.hop, dtype=torch.float64)
    late = u.clone()
    late[..., 2 * net.hop - 1] += 1
    changed = (net(late) - net(u)).detach().abs().amax(dim=(0, 1))
    first = net.frames(net.hop)
    assert changed[:first].max() < 1e-12
    assert changed[first] > 1e-9


def test_every_name_builds() -> None:
    assert len(names()) == len(set(names())) == 30 + 13 + 4
    for name in ("kws-hybrid-2", "classifier/kws-hybrid-2", "denoiser/s6"):
        assert build(name).hop == 256
    assert [names()[0], names()[-1]] == ["kws-separable-2", "recognizer/mamba"]


@pytest.mark.parametrize("name", ["kws-hybrid-3", "denoiser/hybird", "player/hybrid", ""])
def test_an_unknown_name_says_what_there_is(name: str) -> None:
    with pytest.raises(ValueError, match=f"named '{name.rpartition('/')[2] if name[:1] == 'd' else name}'.*hybrid"):
        build(name)


def test_logits_come_at_every_frame_and_the_clip_is_the_last() -> None:
    net = narrow("kws-hybrid-2").eval()
    u = torch.randn(2, 1, 16_000)
    with torch.no_grad():
        logits = net(u)
    assert logits.shape == (2, 3, 62)
    live = Stream(net, batch=2)
    streamed = torch.cat([*(live(piece) for piece in u.split(1000, dim=-1)), live.flush()], dim=-1)
    torch.testing.assert_close(streamed, logits, rtol=1e-4, atol=1e-5)


def test_a_windowed_mean_drops_old_frames() -> None:
    torch.manual_seed(0)
    net = classifier("kws-hybrid-2", classes=3, window=2).double().eval()
    u = torch.randn(1, 1, 6 * 256, dtype=torch.float64)
    everything = classifier(replace(net.table, window=None)).double().eval()
    everything.load_state_dict(net.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(net(u)[..., :2], everything(u)[..., :2])
        assert not torch.allclose(net(u)[..., 2:], everything(u)[..., 2:])


def test_both_heads_learn_and_agree_with_the_stream() -> None:
    net = narrow("recognizer/conv").double().eval()
    u = torch.randn(2, 1, 2 * 2560 + 700, dtype=torch.float64)
    heads = net.heads(u)
    assert heads.tokens.shape == (2, 5, 2)
    assert heads.characters.shape == (2, 3, 18)
    torch.testing.assert_close(heads.tokens, net(u))
    (heads.tokens.sum() + heads.characters.sum()).backward()
    assert all(p.grad is not None for p in net.parameters())


def test_a_recogniser_on_mel_frames_streams_is_saved_and_spells_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table = SpotterTable((Row("mel", 64, 8, window=128), Row("pointwise", 1, 6, 4, times=2)))
    net = recognizer(table, vocabulary=4, states=3, settings={"tokens": ["<blank>", "a", "b", "<start>"]}).eval()
    assert (net.hop, net.table.classes, net.table.blocks[1].states) == (128, 4, 3)
    check_layer(net.body, 1)
    save(net, tmp_path / "net.safetensors")
    u = torch.randn(1, 1, 1000)
    torch.testing.assert_close(load(tmp_path / "net.safetensors").eval()(u), net(u))
    assert [part.name for part in net.parts()] == [part.name for part in classifier(table).parts()]
    with pytest.raises(ValueError, match="no head for characters"):
        net.heads(u)


def test_states_replaces_the_states_of_every_row() -> None:
    for net in (
        classifier("kws-s6-4", states=16),
        denoiser("s6", states=8),
        recognizer("base", states=6, vocabulary=4),
    ):
        states = {layer.states for layer in net.modules() if isinstance(layer, S6)}
        states |= {layer.topology.size["n"] for layer in net.modules() if isinstance(layer, SSM)}
        assert len(states) == 1


def test_one_channel_cannot_gate_itself_and_is_separable() -> None:
    kinds = [layer.topology_name for layer in denoiser("s6").modules() if isinstance(layer, SSM)]
    assert kinds == ["separable"] * 4


def test_a_table_of_your_own() -> None:
    torch.manual_seed(0)
    rows = (Row("dc-block"), Row("full", 4, 3, 2), Row("grouped", 2, 6, 2, groups=3), Row("depthwise", 1, 6, 2))
    net = classifier(replace(CLASSIFIERS["kws-hybrid-2"], blocks=rows), classes=["yes", "no"])
    assert (net.hop, net.settings["classes"]) == (8, ["yes", "no"])
    assert isinstance(net.body.blocks.layers()[0], DCBlock)
    check_layer(net.body, 1)


@pytest.mark.parametrize(("name", "hop"), [("spectral", 128), ("spectral-32", 256)])
def test_the_spectral_denoisers_start_as_the_identity_and_answer_late(name: str, hop: int) -> None:
    torch.manual_seed(0)
    net = denoiser(name).eval()
    report = count(net)
    assert (net.hop, net.delay, report.delay, report.latency) == (hop, hop, hop, 2 * hop)
    assert report.tensors < 1_500_000
    assert report.flops_per_second < 200e6
    x = torch.randn(1, 1, 16_000)
    with torch.no_grad():
        late = net(x)[..., hop:] - x[..., :-hop]
    assert late.square().mean() < 1e-3


def test_the_state_dict_of_the_spectral_networks_has_these_names() -> None:
    for net, before in ((narrow("denoiser/spectral"), "body.mask.body."), (narrow("mel-pointwise"), "body.")):
        names = {name.removeprefix(before) for name in net.state_dict()}
        layers = ("into", "norm", "blocks.0.mixer.body.norm", "blocks.0.ffn.body.norm", "blocks.0.ffn.body.wide")
        layers += ("blocks.0.ffn.body.narrow", "last", "out")
        assert names >= {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
        assert names >= {f"blocks.1.mixer.body.ssm.{name}" for name in ("log_dt", "A_real", "A_imag", "B", "C")}


def test_a_spotter_on_mel_frames_has_logits_every_20_ms() -> None:
    net = classifier("mel-pointwise", classes=["yes", "no", "other"]).eval()
    assert (net.hop, net.delay) == (320, 0)
    assert net(torch.randn(1, 1, 16_000)).shape == (1, 3, 50)


def test_a_denoiser_may_keep_its_level() -> None:
    net = denoiser(replace(narrow("denoiser/hybrid").table, level=100.0))
    check_layer(net, 1)


def test_a_denoiser_may_start_with_a_dc_block() -> None:
    table = replace(
        narrow("denoiser/hybrid").table, encoder=(Row("dc-block"), *narrow("denoiser/hybrid").table.encoder)
    )
    net = denoiser(table)
    assert net.hop == 256
    assert net(torch.randn(1, 1, 300)).shape == (1, 1, 300)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: denoiser(replace(DENOISER, decoder=DENOISER.decoder[::-1])), "decoder should mirror the encoder"),
        (lambda: denoiser(replace(DENOISER, middle=(Row("full", 1, 3, 2),))), "should have 256 channels"),
        (lambda: classifier(replace(CLASSIFIERS["kws-full-2"], blocks=())), "at least one block"),
        (lambda: classifier(replace(CLASSIFIERS["kws-full-2"], blocks=(Row("fool", 2, 2, 2),))), "'fool'"),
        (lambda: recognizer(replace(RECOGNIZER, module="ff"), vocabulary=3), "'ff'; there are none, ffn, conv"),
        (lambda: recognizer(replace(RECOGNIZER, gated=5), vocabulary=3), "resample=1 and"),
    ],
)
def test_a_table_that_cannot_be_built_is_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_settings_are_plain_data() -> None:
    with pytest.raises(TypeError, match="plain data"):
        denoiser(settings={"rate": torch.tensor(3)})
    assert denoiser(settings={"sample_rate": 8000}).settings == {"sample_rate": 8000}


def test_the_selective_kind_is_spelled_as_in_the_tables() -> None:
    assert {row.kind for row in CLASSIFIERS["kws-s6-2"].blocks} == {SELECTIVE}


def test_layers_are_planned_at_the_length_that_the_signal_has_there() -> None:
    plans = plan_layers(build("kws-hybrid-2"), batch=3, length=1000)  # padded to 1024: four hops
    assert [dict(plan.sizes)["t"] for _, plan in plans] == [1024, 256, 64, 32, 16, 8]
    assert {dict(plan.sizes)["b"] for _, plan in plans} == {3}
    assert [name for name, _ in plans][:2] == ["blocks.0.body", "blocks.1.body"]
