"""The training scripts of spotters and connected words: streams with labels where words end, and checkpoints."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from centaurus.data import open_corpus
from centaurus.decode import BACKGROUND
from centaurus.evaluation import clips
from centaurus.export.write import export_onnx
from centaurus.models import classifier, load_network, recognizer, save
from centaurus.nn import Serial
from centaurus.ssm import SSM
from centaurus.train.config import override
from centaurus.train.run import Run
from tests import corpora

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import commands
import kws_10_raw
import kws_30
import measure
import stages
import window_teacher
from mel_streams import BANDS, HOP, STACK, MelStreams, Sound, Word, log_mel, noise_of_pairs, opened, understood
from renew import memories, renew

SECOND = 16_000


def tone(hertz: float, seconds: float = 1.0) -> np.ndarray:
    return (0.1 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * SECOND)) / SECOND)).astype(np.float32)


def streams(seed: int = 0) -> MelStreams:
    words = [Word(log_mel(tone(200.0 * label)), label, 10.0, 50.0) for label in (1, 2, 3)]
    other = Sound(log_mel(0.1 * np.random.default_rng(0).standard_normal(8 * SECOND).astype(np.float32)))
    return MelStreams(words, [other], [other], seed=seed)


def test_streams_have_labels_where_their_words_end() -> None:
    x, labels, weights = streams().batch(8, 0.0)
    assert x.shape == (8, BANDS, labels.shape[1] * STACK)
    assert torch.isfinite(x).all()
    assert set(labels.unique().tolist()) == {0, 1, 2, 3}
    assert (weights[labels > 0] == 1).all()
    made = streams().streams(8, 0.0)[1]
    said = [(stream, *word) for stream in made for word in stream.said]
    assert said
    for stream, label, begin, end in said:
        assert end - begin == pytest.approx(40 / STACK, rel=0.25)
        assert stream.labels[min(round(end), len(stream.labels) - 1)] == label


def test_training_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, path = classifier("wake-mel", ["a", "b", "c", BACKGROUND]), tmp_path / "run.pt"
    monkeypatch.setattr(kws_30, "EVERY", 0.0)
    monkeypatch.setattr(kws_30, "ROWS", 2)
    best = kws_30.train(net, streams(), 0.01, 1e-3, 2.5, path)
    kept = torch.load(path, weights_only=True)
    assert kept["step"] >= 1
    assert kept["spent"] > 0
    for name, x in net.state_dict().items():
        assert torch.equal(kept["net"][name], x)
    for name, x in best.state_dict().items():
        assert torch.equal(kept["average"][name], x)
    again = classifier("wake-mel", ["a", "b", "c", BACKGROUND])
    result = kws_30.train(again, streams(), 0.001, 1e-3, 2.5, path)  # the time is used up: nothing changes
    for name, x in result.state_dict().items():
        assert torch.equal(kept["average"][name], x)
    kws_30.train(again, streams(), 0.02, 1e-3, 2.5, path)
    assert torch.load(path, weights_only=True)["step"] > kept["step"]


def test_what_a_spotter_takes_for_a_word_is_drawn_more_often_once_it_was_heard() -> None:
    made, net = streams(), classifier("wake-mel", ["a", BACKGROUND])
    with torch.no_grad():
        net.body.out.weight.zero_()
        net.body.out.bias[0] = 5.0  # "a" everywhere
    assert not made._hard[id(made.speech)]
    made.hear(kws_30.behind_mel(net), ["a"])
    assert made._hard[id(made.speech)] == made.speech
    assert made.speech[0].surest > 0.9
    with torch.no_grad():
        net.body.out.bias[0] = -5.0
    made.hear(kws_30.behind_mel(net), ["a"])
    assert not made._hard[id(made.speech)]
    assert not made._hard[id(made.noise)]


def test_altered_noise_stays_a_power_and_has_gaps_in_bursts() -> None:
    made = streams()
    made.altered = made.bursts = 1.0
    noise = made._recorded()
    for _ in range(20):
        altered = made._altered(noise)
        assert altered.shape == noise.shape
        assert (altered >= 0).all()
        levels = altered.sum(1)
        assert levels.min() < 1e-3 * levels.max()
    made.altered = made.bursts = 0.0
    assert np.array_equal(made._altered(noise), noise)


def test_speech_at_another_speed_is_noise() -> None:
    made = streams()
    made.alone = made.voiced = 1.0
    said = made.speech[0].frames.astype(np.float32)
    for _ in range(20):
        power = made._voice()
        assert power.shape == (made.length, BANDS)
        assert np.isfinite(power).all()
        assert power.max() <= np.exp(said.max()) * 1.001
    made.noise = [replace(made.noise[0], frames=np.full_like(made.noise[0].frames, -np.inf))]  # never drawn
    _, labels, weights = made.batch(8, 0.0)
    assert (labels[:, :20] == 0).all()
    assert weights[:, :20].all()


def test_coarse_weights_are_multiples_of_a_step_and_near_what_they_were() -> None:
    net = classifier("kws-bands", ["a", BACKGROUND])
    before = {name: x.clone() for name, x in net.state_dict().items()}
    kws_30.coarsen(net)
    for name, x in net.state_dict().items():
        coarse = kws_30.COARSE if name.endswith((".wide.weight", ".narrow.weight")) else 1
        if coarse == 1 and not name.endswith(".conv.weight"):
            assert torch.equal(x, before[name])
            continue
        x, was = x.flatten(1), before[name].flatten(1)
        largest = was.abs().amax(1, keepdim=True)
        assert torch.equal(x.abs().amax(1, keepdim=True), largest)
        assert ((x - was).abs() <= coarse / 32767 * largest).all()
        steps = x / largest.clamp_min(1e-9) * 32767
        assert torch.allclose(steps, steps.round(), atol=0.01)
        assert (steps.round()[x.abs() < largest] % coarse == 0).all()


def test_any_folder_of_sound_files_is_read_with_its_texts_and_without_who_is_held_out(tmp_path: Path) -> None:
    for name in ("p234_001", "p234_002", "p255_001"):
        soundfile.write(tmp_path / f"{name}.wav", tone(300.0), SECOND)
    (tmp_path / "transcripts.txt").write_text("p234_001 Please call Stella.\np255_001 No.\n")
    assert {clip.id: clip.labels["transcript"] for clip in opened(tmp_path, "speech")} == {
        "p234_001": "Please call Stella.",
        "p234_002": "",
    }


def sounds(folder: Path) -> list[str]:
    """Write two words by twelve speakers, most of them in the training split; return the options that name them."""
    for word in ("a", "b"):
        (folder / word).mkdir(parents=True)
        for speaker in range(12):
            soundfile.write(folder / word / f"{speaker}_nohash_0.wav", tone(300.0), SECOND)
    return [part for kind in ("--words", "--speech", "--noise") for part in (kind, str(folder))]


def test_a_spotter_of_fewer_blocks_goes_on_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = classifier("kws-bands", ["a", "b", BACKGROUND])
    save(old, tmp_path / "old.safetensors")
    options = ["--start", str(tmp_path / "old.safetensors"), "--blocks", "6", "--minutes", "0", "--threshold", "0.45"]
    options += ["--background", "0.7", *sounds(tmp_path / "words")]
    out = str(tmp_path / "out.safetensors")
    monkeypatch.setattr(sys, "argv", ["kws_30.py", out, *options])
    kws_30.main()
    new = load_network(out)
    assert new.table.blocks[1].times == 6
    assert new.settings["threshold"] == 0.45
    x = 0.1 * torch.randn(1, 1, SECOND)
    assert torch.allclose(new(x) - old(x), torch.tensor([0.0, 0.0, -0.7])[:, None], atol=1e-5)


def test_a_model_is_the_mean_of_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nets = [classifier("kws-bands", ["a", "b", BACKGROUND]) for _ in range(3)]
    files = [str(tmp_path / f"{k}.safetensors") for k in range(3)]
    for net, file in zip(nets, files, strict=True):
        save(net, file)
    options = ["--start", files[0], "--mean", *files[1:], "--minutes", "0", "--background", "0.5"]
    options += sounds(tmp_path / "words")
    out = str(tmp_path / "out.safetensors")
    monkeypatch.setattr(sys, "argv", ["kws_30.py", out, *options])
    kws_30.main()
    new, changed = load_network(out).state_dict(), "body.out.bias"
    for name, x in new.items():
        expected = torch.stack([net.state_dict()[name] for net in nets]).mean(0)
        if name == changed:
            expected[-1] -= 0.5
        assert torch.allclose(x, expected, atol=1e-6), name


def test_clips_in_which_a_spotter_does_not_find_their_word_are_left_out() -> None:
    net = classifier("kws-mel", ["a", "b", BACKGROUND])
    with torch.no_grad():
        net.body.out.weight.zero_()
        net.body.out.bias.copy_(torch.tensor([[5.0], [-5.0], [0.0]]))  # "a" everywhere, "b" nowhere
    words = [Word(log_mel(tone(300.0, 0.5 * (1 + label))), label, 5.0, 20.0) for label in (0, 1, 2)]
    assert understood(words, kws_30.behind_mel(net), 0.1) == words[:2]  # what has no label stays
    assert understood(words, kws_30.behind_mel(net), 0.0) == words


def test_other_microphones_are_smooth_and_some_are_dull() -> None:
    made = streams()
    for dull, drop in ((0.0, 2.5), (1.0, 5.0)):
        made.dull = dull
        curves = np.stack([made._tone() for _ in range(200)])
        assert np.isfinite(curves).all()
        assert np.abs(np.diff(curves, axis=1)).max() < 1.0
        falls = curves[:, 0] - curves[:, -1]
        assert (falls.max() > drop) == bool(dull)
        assert (np.abs(curves).max(1) == 0).mean() == pytest.approx(0.3, abs=0.15)


def test_a_gated_word_keeps_its_loud_frames() -> None:
    made, power = streams(), np.full((40, BANDS), 0.01, np.float32)
    power[10:20] = 1.0
    for _ in range(20):
        gated = made._gated(power)
        assert gated.dtype == np.float32
        assert (gated >= 0).all()
        assert (gated <= power).all()
        assert (gated[10:20] >= 0.95).all()
        assert gated[:10].max() < 0.1 * power[0, 0]


@pytest.mark.parametrize(("masked", "least", "most"), [(0.0, 0, 0), (1.0, 1, 14)])
def test_masked_bands_are_level(masked: float, least: int, most: int) -> None:
    made = streams()
    made.masked = masked
    for _ in range(20):
        row = made.rng.standard_normal((made.length, BANDS)).astype(np.float32)
        made._mask(row)
        assert least <= int((row.std(0) < 0.6).sum()) <= most


def test_log_mel_has_a_frame_for_every_hop() -> None:
    frames = log_mel(tone(440.0))
    assert frames.shape == (SECOND // HOP, BANDS)
    assert frames.dtype == np.float16


def test_a_recogniser_learns_with_the_spotter_whose_blocks_are_its_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a", "b", "c"]
    spotter = classifier("kws-mel", [*names, BACKGROUND])
    tokens = [commands.BLANK, *names, commands.MARK]
    table = replace(spotter.table, blocks=(spotter.table.blocks[0], replace(spotter.table.blocks[1], times=7)))
    net = recognizer(table, len(tokens), settings={"sample_rate": SECOND, "tokens": tokens})
    before = {name: x.clone() for name, x in net.state_dict().items()}
    monkeypatch.setattr(commands, "EVERY", 0.0)
    for module in (commands, kws_30):
        monkeypatch.setattr(module, "ROWS", 2)
    both = commands.Both(net, spotter)
    best = commands.train(both, streams(), 0.02, 1e-3, tmp_path / "run.pt")
    kept = torch.load(tmp_path / "run.pt", weights_only=True)
    assert kept["step"] >= 1
    assert any(not torch.equal(x, before[name]) for name, x in net.state_dict().items())
    for name, x in best.state_dict().items():
        assert torch.isfinite(x).all()
        assert torch.equal(kept["average"][name], x)
    recogniser, inside = best.models
    x = torch.randn(1, BANDS, 64)
    assert torch.allclose(kws_30.behind_mel(inside)(x), best(x)[0], atol=1e-4)
    assert torch.allclose(kws_30.behind_mel(recogniser)(x), best(x)[1], atol=1e-4)
    save(inside, tmp_path / "inside.safetensors")
    kept = load_network(str(tmp_path / "inside.safetensors"))
    assert torch.allclose(kws_30.behind_mel(kept)(x), best(x)[0], atol=1e-4)


@pytest.mark.parametrize(
    ("options", "channels", "blocks", "shared"),
    [
        (["--table", "commands-bands", "--channels", "80", "--states", "96"], 80, 6, 3),
        (["--shared", "7"], 144, 7, 7),
    ],
)
def test_a_recogniser_has_the_width_that_is_asked_for(
    options: list[str], channels: int, blocks: int, shared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(tmp_path / name) for name in ("out.safetensors", "spotter.safetensors")]
    for kind in ("--words", "--speech", "--noise"):
        options = [*options, kind, str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["commands.py", files[0], "--spotter", files[1], "--minutes", "0", *options])
    commands.main()
    net, spotter, ears = (load_network(name) for name in (*files, "kws-30"))
    assert (net.table.blocks[1].channels, net.table.blocks[1].times) == (channels, blocks)
    assert (spotter.table.blocks[1].channels, spotter.table.blocks[1].times) == (channels, shared)
    assert spotter.settings == ears.settings
    known, answers = ears.state_dict(), spotter.body.out.state_dict()
    assert all(torch.equal(x, known[f"body.out.{name}"]) for name, x in answers.items()) == (channels == 80)
    x = torch.randn(1, BANDS, 64)
    before = (
        Serial([x for name, x in one.body.named_children() if name in ("bands", "into")]) for one in (net, spotter)
    )
    features = [layers(x) for layers in before]
    assert torch.equal(*features)


def test_biases_of_the_blank_and_the_mark_are_set_after_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out.safetensors")
    options = ["--minutes", "0", "--start", "commands", "--blank", "0.7", "--mark", "0.3"]
    for kind in ("--words", "--speech", "--noise"):
        options += [kind, str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["commands.py", out, *options])
    commands.main()
    before, after = load_network("commands").state_dict(), load_network(out).state_dict()
    change = {name: x - before[name] for name, x in after.items() if not torch.equal(x, before[name])}
    assert list(change) == ["body.out.bias"]
    expected = torch.zeros(32)
    expected[0], expected[-1] = -0.7, 0.3
    assert torch.allclose(change["body.out.bias"].flatten(), expected, atol=1e-6)


def test_a_spotter_learns_what_its_teacher_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    labels, weights = torch.zeros(2, 32, dtype=torch.long), torch.ones(2, 32)
    logits = torch.randn(2, 4, 32)
    exact = torch.nn.functional.one_hot(labels, 4).mT.float()
    plain = kws_30.spotted(logits, labels, weights, 2.0)
    hard = torch.nn.functional.cross_entropy(logits.roll(1, 1), labels)
    alike = kws_30.spotted(logits, labels, weights, 2.0, exact)
    assert torch.isclose(alike, (1 - kws_30.TAUGHT) * plain + kws_30.TAUGHT * hard)
    assert torch.equal(kws_30.spotted(logits, labels, weights, 2.0, 0 * exact), plain)  # it was not asked
    asked = []
    answered = window_teacher.answers
    monkeypatch.setattr(kws_30, "ROWS", 2)
    monkeypatch.setattr(kws_30, "answers", lambda *given: asked.append(x := answered(*given)) or x)
    net, teacher = classifier("kws-bands", ["a", "b", "c", BACKGROUND]), window_teacher.Teacher(4).eval()
    best = kws_30.train(net, streams(), 0.01, 1e-3, 2.0, tmp_path / "run.pt", teacher)
    assert any(x.any() for x in asked)
    assert all(torch.isfinite(x).all() for x in best.state_dict().values())


def test_a_teacher_answers_for_the_frames_of_words() -> None:
    torch.manual_seed(0)
    teacher, rng = window_teacher.Teacher(4).eval(), np.random.default_rng(0)
    x, made = streams().streams(6, 0.0)
    told = window_teacher.answers(teacher, x, made, 1.0, rng)
    assert told.shape == (6, 4, made[0].labels.size)
    count = 0
    for row, stream in enumerate(made):
        assert not told[row, :, : int((stream.labels > 0).argmax())].any()
        for _, _, end in stream.said:
            last = window_teacher.last_frame(end, x.shape[-1])
            if last is not None:
                window = x[row : row + 1, :, last - window_teacher.WINDOW : last]
                expected = teacher(window).softmax(1)[0]
                assert torch.allclose(told[row, :, round(end)], expected, atol=1e-5)
                count += 1
    assert count
    assert not window_teacher.answers(teacher, x, made, 0.0, rng).any()


def test_a_teacher_learns_from_words_and_from_other_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, made = streams().streams(6, 0.0)
    found, labels = window_teacher.windows(x, made, np.random.default_rng(0))
    assert found.shape == (len(labels), BANDS, window_teacher.WINDOW)
    assert (labels == 0).sum() == len(made)
    assert 0 < (labels > 0).sum() <= sum(len(stream.said) for stream in made)
    monkeypatch.setattr(window_teacher, "ROWS", 2)
    path = tmp_path / "teacher.pt"
    best = window_teacher.train(window_teacher.Teacher(4), streams(), 0.02, 1e-3, path).eval()
    again = window_teacher.load(str(path), 4)
    assert torch.equal(again(found), best(found))


def test_modes_of_very_long_memory_become_short_ones() -> None:
    net = classifier("kws-mel", ["a", "b", BACKGROUND])
    layers = [layer for layer in net.modules() if isinstance(layer, SSM)]
    before = [(int((memories(layer) > 100).sum()), layer.C.detach().clone()) for layer in layers]
    lost = renew(net, longer=100.0, share=0.75)
    assert 0 < lost < 0.75
    for layer, (slow, C) in zip(layers, before, strict=True):
        new = (layer.C == 0).all(0)
        assert int(new.sum()) == round(0.75 * slow)
        assert int((memories(layer) > 100).sum()) == slow - round(0.75 * slow)
        assert torch.equal(layer.C[:, ~new], C[:, ~new])
        assert memories(layer)[new].max() < 61
        assert memories(layer)[new].min() > 1.4
    assert torch.isfinite(net(0.1 * torch.randn(1, 1, SECOND))).all()


def test_the_noise_of_pairs_is_what_they_differ_by(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(2):
        speech, noise = tone(300.0, 0.6), (0.02 * rng.standard_normal(round(0.6 * SECOND))).astype(np.float32)
        for kind, x in (("clean", speech), ("noisy", speech + noise)):
            folder = tmp_path / f"{kind}_trainset_28spk_wav"
            folder.mkdir(exist_ok=True)
            soundfile.write(folder / f"p226_{number:03d}.wav", x, SECOND, subtype="FLOAT")
    (sound,) = noise_of_pairs(open_corpus(tmp_path))
    assert len(sound.frames) == round(1.2 * SECOND) // HOP
    bands = sound.frames.astype(np.float32)[2:].mean(0)
    assert bands.max() - bands.min() < 3.0  # white noise: the tone is gone


def test_words_alone_come_before_words_with_a_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = ["down", "no", "yes"]
    data = corpora.speech_commands(tmp_path / "data", names, clips=8, speakers=4)
    save(classifier("wake-mel", ["other", *names, BACKGROUND]), tmp_path / "spotter.safetensors")
    pairs = ["network=small", f"words={','.join(names)}", "steps=10", "batch=4", "log_every=1", "validations=1"]
    first = kws_10_raw.stages(override(kws_10_raw.SETTINGS, pairs))
    assert list(first) == ["words"]
    words = stages.train("kws", first, data, tmp_path / "run")
    made = words.stat().st_mtime_ns
    both = kws_10_raw.stages(override(kws_10_raw.SETTINGS, [*pairs, f"teacher={tmp_path / 'spotter.safetensors'}"]))
    assert (both["words"].steps, both["taught"].steps) == (2, 8)
    taught = stages.train("kws", both, data, tmp_path / "run")
    assert taught == tmp_path / "run" / "taught" / "last.safetensors"
    assert words.stat().st_mtime_ns == made
    assert Run(tmp_path / "run" / "taught").description()["settings"]["start"] == str(words)
    alone, with_teacher = (
        [record for record in Run(tmp_path / "run" / name).records() if "cross_entropy" in record]
        for name in ("words", "taught")
    )
    assert (len(alone), len(with_teacher)) == (2, 8)
    assert not any("taught" in record for record in alone)
    assert all(record["taught"] > 0 for record in with_teacher)
    assert load_network(str(taught)).settings["classes"] == names


def test_a_classifier_of_ten_words_is_measured_on_clips_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = corpora.speech_commands(tmp_path / "data" / "kws", [*measure.TEN, "bed"], clips=8, speakers=8)
    assert "bed" in clips(data, ("word",), SECOND, None).values("word")
    words = clips(data, ("word",), SECOND, None).where(word=tuple(measure.TEN))
    x = torch.zeros(len(words), 1, 63 * 256)  # the last frame of a second is padded
    for row, clip in zip(x, words, strict=True):
        samples = words.load(clip)[:SECOND]
        row[0, : len(samples)] = torch.from_numpy(samples)
    net = classifier("kws-separable-2", measure.TEN, window=62, settings={"sample_rate": SECOND}).eval()
    with torch.no_grad():
        net.body.head.layers.last.bias -= net(x)[..., -1].mean(0)[:, None]  # so that clips differ in their answers
        said = net(x)[..., -1].argmax(1).tolist()
    assert len(set(said)) > 1
    right = [measure.TEN[k] == clip.labels["word"] for k, clip in zip(said, words, strict=True)]
    result = measure.keywords(data.parent, str(export_onnx(net, tmp_path / "ten.onnx")))
    assert result["n"] == len(words)
    assert result["accuracy"][0] == pytest.approx(np.mean(right), abs=1e-3)
    assert result["accuracy of ten"] == [*result["accuracy"], len(words)]
    for word, share in result["by word"].items():
        own = [k for k, clip in zip(said, words, strict=True) if clip.labels["word"] == word]
        assert share == pytest.approx(np.mean([measure.TEN[k] == word for k in own]), abs=1e-3)
    assert "live" not in result
