"""Evaluation: metrics with known values, in every layout, for torch and for onnxruntime alike."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centaurus import audio
from centaurus import evaluation as ev
from centaurus.audio.metrics import MetricError
from centaurus.data import Phrases, open_corpus, synthetic
from centaurus.decode import LATE, MARK_DELAY
from centaurus.evaluation import Model, exported, live, write
from centaurus.evaluation.live import Point
from centaurus.models import Row
from centaurus.models.tables import SpectralTable
from centaurus.system import ContentError
from tests import corpora

WORDS = ("yes", "no")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def engine(task: str, run: Any, classes: tuple[str, ...] = (), tokens: tuple[str, ...] = ()) -> Model:
    return Model(task, 16_000, Fraction(1, 256), classes, tokens, run)


def test_accuracy_counts_what_a_model_says(tmp_path: Path) -> None:
    data = corpora.speech_commands(tmp_path / "data", ("yes", "no", "up"), clips=20, speakers=20)
    always = engine("classifier", lambda x: np.array([[0.0, 0, 0], [0, 0, 3]]), classes=WORDS)
    report = ev.evaluate(always, data)
    assert report.figures == {"accuracy": 0.5}  # "up" is not a class and there is no background
    assert [(g["class"], g["clips"], g["recall"]) for g in report.groups] == [("yes", 4, 0.0), ("no", 4, 1.0)]
    with_background = engine("classifier", lambda x: np.array([[0.0], [0], [1]]), classes=(*WORDS, "background"))
    assert ev.evaluate(with_background, data, "val").figures == {"accuracy": pytest.approx(1 / 3)}
    files = {path.name for path in write(report, tmp_path / "out")}
    assert files == {"figures.json", "clips.csv", "classes.csv", "plot.png"}
    assert json.loads((tmp_path / "out" / "figures.json").read_text())["accuracy"] == 0.5
    assert len((tmp_path / "out" / "clips.csv").read_text().splitlines()) == 9


def test_a_clip_of_a_spotter_is_the_class_where_a_word_is_most_probable() -> None:
    frames = np.log(np.full((3, 12), 0.01))
    frames[2] = np.log(0.98)  # the background, before and after the word
    frames[:, 5:8] = np.log([[0.7], [0.2], [0.1]])
    assert ev.most_probable(frames, (*WORDS, "background"), 3) == ("yes", pytest.approx(0.7))
    frames[:, 5:8] = np.log([[0.3], [0.2], [0.5]])
    assert ev.most_probable(frames, (*WORDS, "background"), 3)[0] == "background"
    frames[:, 3] = np.log([0.02, 0.97, 0.01])  # one frame alone is averaged away
    assert ev.most_probable(frames, (*WORDS, "background"), 3)[0] != "no"


def test_a_spotter_that_answers_frame_by_frame_is_asked_where_the_word_is(tmp_path: Path) -> None:
    data = corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=10, speakers=10)

    def run(x: Any) -> Any:
        p = np.full((3, len(x) // 256), 0.01)
        p[2] = 0.98
        p[:, 40:60] = [[0.98], [0.01], [0.01]]
        return np.log(p)

    model = Model("classifier", 16_000, Fraction(1, 256), (*WORDS, "background"), (), run, window=0.1)
    assert {row["predicted"] for row in ev.evaluate(model, data).rows} == {"yes"}


def test_a_denoiser_that_does_nothing_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ev.MEASURES, "dnsmos")  # slow, and tested with the measures
    data = corpora.voicebank(tmp_path / "data", train=2, test=5, seconds=2.0)
    report = ev.evaluate(engine("denoiser", lambda x: x[None]), data, limit=3)
    assert len(report.rows) == 3
    figures = report.figures
    for name in ("si_sdr", "stoi", "pesq"):
        assert figures[name] == figures[f"{name}_before"], name
    noisy, clean = (open_corpus(data, ("test",), (kind,)).load(0) for kind in ("noisy", "clean"))
    assert report.rows[0]["si_sdr"] == pytest.approx(audio.si_sdr(noisy, clean))
    assert sum(group["clips"] for group in report.groups) == 3
    files = {path.name for path in write(report, tmp_path / "out")}
    assert files == {"figures.json", "clips.csv", "snr.csv", "plot.png"}


def test_speech_and_noise_are_mixed_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pesq", "stoi", "dnsmos"):
        monkeypatch.delitem(ev.MEASURES, name)
    data = corpora.dns(tmp_path / "data", clean=10, noise=8, seconds=1.5)
    reports = [ev.evaluate(engine("denoiser", lambda x: 0.5 * x[None]), data, "train", limit=5) for _ in range(2)]
    assert reports[0].rows == reports[1].rows
    assert [row["snr"] for row in reports[0].rows] == [-5, 0, 5, 10, 15]
    assert all(row["si_sdr"] == pytest.approx(row["snr"], abs=0.7) for row in reports[0].rows)


def test_a_measure_that_is_not_installed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> float:
        raise ImportError("pesq is not installed")

    for name in ("stoi", "dnsmos"):
        monkeypatch.delitem(ev.MEASURES, name)
    monkeypatch.setitem(ev.MEASURES, "pesq", absent)
    data = corpora.voicebank(tmp_path / "data", train=2, test=2, seconds=1.0)
    report = ev.evaluate(engine("denoiser", lambda x: x[None]), data)
    assert report.missing == {"pesq": "pesq is not installed"}
    assert set(report.figures) == {"si_sdr", "si_sdr_before"}


def test_only_a_metric_without_a_value_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def undefined(*_: object) -> float:
        raise MetricError("too short")

    def wrong(*_: object) -> float:
        raise ValueError("shapes differ")

    monkeypatch.setattr(ev, "MEASURES", {"pesq": undefined})
    data = corpora.voicebank(tmp_path / "data", train=2, test=1, seconds=1.0)
    model = engine("denoiser", lambda x: x[None])
    assert set(ev.evaluate(model, data).missing.values()) == {"too short"}
    monkeypatch.setattr(ev, "MEASURES", {"pesq": wrong})
    with pytest.raises(ValueError, match="shapes differ"):
        ev.evaluate(model, data)


def test_a_folder_without_clips_for_the_task_is_named(tmp_path: Path) -> None:
    data = corpora.voicebank(tmp_path / "data", train=1, test=1, seconds=1.0)
    with pytest.raises(ContentError, match="has no word clips") as raised:
        ev.evaluate(engine("classifier", lambda x: x[None], classes=("yes", "no")), data)
    assert raised.value.path == data
    assert raised.value.reason == "has no word clips to evaluate on"


def test_errors_are_counted_over_all_utterances(tmp_path: Path) -> None:
    data = corpora.librispeech(tmp_path / "data", train=2, dev=2, test=3, words=2, letters="ab")
    silent = engine("recognizer", lambda x: np.array([[1.0], [0], [0]]), tokens=("<blank>", "a", "b"))
    report = ev.evaluate(silent, data)
    assert report.figures == {"wer": 1.0, "cer": 1.0}
    assert [row["transcript"] for row in report.rows] == ["", "", ""]
    assert report.groups == []
    assert {path.name for path in write(report, tmp_path / "out")} == {"figures.json", "utterances.csv", "plot.png"}
    test = data / "LibriSpeech" / "test-clean"
    shutil.copytree(test, test.with_name("test-other"))
    groups = ev.evaluate(silent, data).groups
    assert groups == [{"subset": f"test-{name}", "clips": 3, "wer": 1.0, "cer": 1.0} for name in ("clean", "other")]


def test_what_cannot_be_measured_is_an_error(tmp_path: Path) -> None:
    data = corpora.speech_commands(tmp_path / "data", WORDS, clips=10, speakers=10)
    with pytest.raises(ValueError, match="no clip of the folder belongs to a class of the model: left, right"):
        ev.evaluate(engine("classifier", lambda x: x, classes=("left", "right")), data)
    with pytest.raises(ValueError, match="the model knows none of the words of the speech-commands corpus"):
        ev.evaluate(engine("recognizer", lambda x: x, tokens=("<blank>", "left")), data)
    noise = corpora.dns(tmp_path / "dns", clean=2, noise=2, seconds=1.0)
    with pytest.raises(ValueError, match="no speech of the folder has a transcript"):
        ev.evaluate(engine("recognizer", lambda x: x, tokens=("", "a")), noise)
    with pytest.raises(ValueError, match=r"no clips of word in dev: choose --split"):
        ev.evaluate(engine("classifier", lambda x: x, classes=WORDS), data, "dev")


def test_damaged_noise_is_an_error_and_not_replaced_by_other_noise(tmp_path: Path) -> None:
    corpus = open_corpus(corpora.speech_commands(tmp_path / "data", WORDS, clips=10, speakers=10))
    corpora.write_pack(corpus.where(kind="word"), tmp_path / "packs" / "words")
    noise = tmp_path / "packs" / "noise"
    noise.mkdir()
    (noise / "noise.flac").write_bytes(b"fLaC damaged")
    (noise / "index.tsv").write_text("file\tstart\tnsamples\tid\tcategory\nnoise.flac\t0\t9\tone\twind\n")
    with pytest.raises(ValueError, match=r"(?s)no clip of noise.*noise\.flac"):
        ev.evaluate(engine("recognizer", lambda x: x, tokens=("<blank>", *WORDS)), tmp_path / "packs")


def test_connected_words_are_counted_and_timed(tmp_path: Path) -> None:
    """A model that returns the spoken words, each two frames late, except the last one."""
    data = corpora.speech_commands(tmp_path / "data", WORDS, clips=20, speakers=20)
    words = ev.clips(data, ("word",), 16_000, None)
    said = [
        Phrases(words, how=how, fixed=1).phrase(k, np.random.default_rng(0))[1]
        for how in ev.CONDITIONS.values()
        for k in range(3)
    ]
    tokens, answers = ("<blank>", *WORDS, "<start>"), iter(said)

    def late(x: np.ndarray) -> np.ndarray:
        logits = np.zeros((4, len(x) // 512))
        logits[0], logits[3] = 1, -20
        for spoken in next(answers)[:-1]:
            first = spoken.start // 512 + 2
            logits[3, first : first + 3] = 20
            logits[tokens.index(spoken.word), spoken.end // 512 + 2] = 3  # until 64 to 96 ms after the word
        return logits

    model = Model("recognizer", 16_000, Fraction(1, 512), (), tokens, late)
    report = ev.evaluate(model, data, limit=3)
    assert [group["phrases"] for group in report.groups] == [3, 3]
    for group, phrases in zip(report.groups, (said[:3], said[3:]), strict=True):
        assert group["wer"] == pytest.approx(3 / sum(map(len, phrases)))
        assert group["start_ms"] == pytest.approx(48 - 1000 * MARK_DELAY, abs=14)
        assert group["end_ms"] == pytest.approx(80 - 1000 * LATE, abs=14)
    assert "conditions.csv" in {path.name for path in write(report, tmp_path / "out")}


def test_an_exported_model_runs_aligned_and_listens_anew(tmp_path: Path) -> None:
    import torch

    import centaurus as ct
    from centaurus.runtime import Session

    torch.manual_seed(0)
    net = ct.denoiser(SpectralTable((Row("pointwise", 1, 8, 4),), analysis=64, synthesis=32, hop=16)).eval()
    model = exported(Session(ct.export_onnx(net, tmp_path / "net.onnx")))
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    with torch.inference_mode():
        expected = net.aligned(torch.from_numpy(x)[None, None])[0].numpy()
    assert net.delay > 0
    assert np.allclose(model.run(x), expected, atol=1e-5)
    assert model.listen is not None
    first, again = (model.listen()(x) for _ in range(2))
    assert np.array_equal(first, again)


def test_live_evaluation_takes_words_noise_and_others_from_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = synthetic.speech_commands(tmp_path / "words", WORDS, clips=6, speakers=3)
    noise = corpora.dns(tmp_path / "noise", clean=2, noise=2)
    others = corpora.librispeech(tmp_path / "others", train=0, dev=0, test=2)
    points = [Point(0.3, 0.1, 20, 20.0, 25.0), Point(0.6, 0.2, 4, 4.0, 7.0), Point(0.9, 0.5, 0, 0.0, 3.0)]
    seen: list[Any] = []
    monkeypatch.setattr(live, "measure", lambda *arguments: seen.extend(arguments) or points)
    model = Model("classifier", 16_000, Fraction(1, 256), (*WORDS, "background"), (), len, lambda: len, 0.2, 1.5)
    report = ev.Evaluation("classifier")
    assert ev.evaluate_live(model, report, words, None, noise, others) == points
    _, spotting, said, quiet, sounds = seen
    assert spotting.words == WORDS
    assert (spotting.smoothing.window, spotting.smoothing.caution) == (0.2, 1.5)
    assert {clip.labels["kind"] for clip in said} == {"word"}
    assert {clip.labels["kind"] for clip in sounds} == {"noise"}
    assert "transcript" in quiet[0].labels
    assert report.figures["misses_at_10_alarms_per_hour"] == 0.2
    assert report.figures["threshold_for_1_alarms_per_hour"] == 0.9
    with pytest.raises(ValueError, match="this model is a denoiser"):
        ev.evaluate_live(engine("denoiser", len), report, words, None, None, others)


@pytest.mark.parametrize(("snr", "band"), [(4.9, 5), (7.4, 5), (7.6, 10), (-2.4, 0), (-6.0, -5)])
def test_an_snr_belongs_to_the_nearest_multiple_of_5_db(snr: float, band: int) -> None:
    assert ev._band({"snr": snr}) == band
