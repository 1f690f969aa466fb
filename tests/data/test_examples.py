"""Examples of the three tasks: as the paper defines them, and functions of seed, epoch and index only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centaurus import audio, data
from centaurus.audio import augment
from centaurus.audio.augment import fit
from centaurus.data import Clip, Corpus, Keywords, Mixing, Mixtures, Pairs, Utterances, Variation
from centaurus.data.keywords import NONE, without_words
from centaurus.data.rows import Group, draw, epoch_size

ROW = 2**15


@pytest.fixture
def apart(folders: dict[str, Path]) -> tuple[Corpus, Corpus]:
    corpus = data.prepared(data.open_corpus(folders["dns"]))
    return corpus.where(kind="speech"), corpus.where(kind="noise")


@pytest.fixture
def words(folders: dict[str, Path]) -> tuple[Corpus, Corpus]:
    corpus = data.prepared(data.open_corpus(folders["speech-commands"]))
    return corpus.where(kind="word"), corpus.where(kind="noise")


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1.0, 0.5, 0.1, 0.01])), min_size=1, max_size=3))
def test_shares_of_successive_epochs_cover_everything(shapes: list[tuple[int, float]]) -> None:
    groups = [Group(count, share) for count, share in shapes]
    epochs = [draw(groups, 7, epoch) for epoch in range(45)]
    bounds = np.cumsum([0, *(group.count for group in groups)])
    for items in epochs:
        assert len(items) == epoch_size(groups)
        for group, first, last in zip(groups, bounds[:-1], bounds[1:], strict=True):
            own = items[(items >= first) & (items < last)]
            assert len(own) == group.size
    for group, first in zip(groups, bounds[:-1], strict=True):
        needed = -(-group.count // group.size)
        seen = {int(item) for items in epochs[:needed] for item in items}
        assert set(range(first, first + group.count)) <= seen
    np.testing.assert_array_equal(draw(groups, 7, 3), epochs[3])


def test_every_epoch_and_every_cycle_of_epochs_has_its_own_order() -> None:
    halves = [set(draw([Group(40, 0.5)], 7, epoch).tolist()) for epoch in range(4)]
    assert halves[0] | halves[1] == halves[2] | halves[3] == set(range(40))
    assert halves[0] not in (halves[2], halves[3])
    first, second = (draw([Group(40, 1.0), Group(40, 1.0)], 7, epoch) >= 40 for epoch in range(2))
    assert not np.array_equal(first, second)  # the groups are interleaved differently


def same_twice(examples: Any) -> None:
    """An example depends on its index and generator alone, in whatever order examples are asked for."""
    order = examples.draw(0, np.random.default_rng(0))
    assert len(order) == examples.size()
    np.testing.assert_array_equal(order, examples.draw(0, np.random.default_rng(0)))
    chosen = [int(i) for i in order[:4]]
    first = {i: examples.example(i, np.random.default_rng([1, 0, i])) for i in chosen}
    again = {i: examples.example(i, np.random.default_rng([1, 0, i])) for i in reversed(chosen)}
    for i in chosen:
        for name, value in first[i].items():
            np.testing.assert_array_equal(value, again[i][name])
            assert not isinstance(value.base, np.memmap)
    assert any((first[i]["audio"] != examples.example(i, np.random.default_rng(9))["audio"]).any() for i in chosen) or (
        isinstance(examples, Pairs | Utterances)
    )


@pytest.mark.parametrize("mixing", [Mixing(), Mixing(variety=1.0, silent_speech=0.2, clean_input=0.2, rumble=0.5)])
def test_mixtures_are_in_range_and_reproducible(apart: tuple[Corpus, Corpus], mixing: Mixing) -> None:
    examples = Mixtures(*apart, mixing, length=ROW)
    same_twice(examples)
    for index in range(examples.size()):
        item = examples.example(index, np.random.default_rng(index))
        assert item["audio"].shape == item["clean"].shape == (1, ROW)
        assert item["audio"].dtype == item["clean"].dtype == np.float32
        assert 0 < item["samples"] <= ROW
        assert np.abs(item["audio"]).max() <= 1.2
        assert np.isfinite(item["audio"]).all()


def test_the_ratio_and_the_level_are_those_of_the_paper(apart: tuple[Corpus, Corpus]) -> None:
    examples = Mixtures(*apart, Mixing(time_masks=0, frequency_masks=0), length=ROW)
    ratios, levels = [], []
    for seed in range(60):
        noisy, clean = examples.mixture(seed % len(examples.rows), np.random.default_rng(seed))
        ratios.append(audio.dbfs(clean) - audio.dbfs(noisy - clean))
        levels.append(audio.dbfs(noisy))
    assert min(ratios) >= -5.1
    assert max(ratios) <= 15.1
    assert max(ratios) - min(ratios) > 14
    assert min(levels) >= -35.1
    assert max(levels) <= -14.9


def test_a_residue_of_the_noise_may_stay(apart: tuple[Corpus, Corpus]) -> None:
    (noisy, clean), (same, kept) = (
        Mixtures(*apart, Mixing(residue=residue, time_masks=0, frequency_masks=0), 2**15).mixture(
            1, np.random.default_rng(3)
        )
        for residue in (0.0, 0.1)
    )
    assert np.array_equal(noisy, same)
    np.testing.assert_allclose(kept - clean, 0.1 * (noisy - clean), atol=1e-6)


def test_rumble_is_low_and_a_part_of_the_noise(apart: tuple[Corpus, Corpus]) -> None:
    def share_below(x: np.ndarray[Any, Any], hertz: float) -> float:
        power = np.abs(np.fft.rfft(x)) ** 2
        return float(power[: round(hertz * len(x) / 16_000)].sum() / power.sum())

    for seed in range(20):
        assert share_below(augment.rumble(np.random.default_rng(seed), 2**15), 200) > 0.9
    shares, ratios = [], []
    for rumble in (0.0, 1.0):
        mixtures = Mixtures(*apart, Mixing(snr=(5.0, 5.0), time_masks=0, frequency_masks=0, rumble=rumble), 2**15)
        noisy, clean = mixtures.mixture(1, np.random.default_rng(3))
        shares.append(share_below(noisy - clean, 100))
        ratios.append(audio.dbfs(clean) - audio.dbfs(noisy - clean))
    assert shares[1] > shares[0] + 0.05
    np.testing.assert_allclose(ratios, 5.0, atol=0.1)


def test_only_the_input_is_masked(apart: tuple[Corpus, Corpus]) -> None:
    masked, plain = (Mixtures(*apart, Mixing(time_masks=n, frequency_masks=n), length=ROW) for n in (2, 0))
    noisy, clean = masked.mixture(0, np.random.default_rng(3))
    other, same = plain.mixture(0, np.random.default_rng(3))
    np.testing.assert_array_equal(clean, same)
    assert (noisy != other).mean() > 0.5


def test_readings_are_cut_and_drawn_in_part_all_else_is_whole(apart: tuple[Corpus, Corpus]) -> None:
    speech, noise = apart
    examples = Mixtures(speech, noise, length=20_000, readings={"librivox": 0.5})
    cut = [row for row in examples.rows if speech[row[0].recording].labels["set"] == "librivox"]
    frames = sum(clip.frames for clip in speech.where(set="librivox"))
    assert len(cut) == -(-frames // 20_000)
    whole = [piece for row in examples.rows if row not in cut for piece in row]
    assert all(piece.frames == speech[piece.recording].frames for piece in whole)
    assert examples.size() == round(len(cut) / 2) + len(examples.rows) - len(cut)
    short = Mixtures(speech, noise, length=10_000)
    assert len(short.discarded) == len(speech.where(set="vctk"))
    with pytest.raises(ValueError, match="longer than a row of 10000"):
        Mixtures(speech.where(set="vctk"), noise, length=10_000)
    with pytest.raises(ValueError, match="0 of noise"):
        Mixtures(speech, noise.of([]))


def test_a_file_that_breaks_during_training_is_reported_and_not_fatal(tmp_path: Path) -> None:
    for k in range(3):
        x = np.random.default_rng(k).normal(0, 0.1, 16_000).astype(np.float32)
        audio.write(tmp_path / f"{k}.wav", x, 16_000)
    clips = [Clip(tmp_path / f"{k}.wav", str(k), labels={"transcript": f"text {k}"}) for k in range(3)]
    corpus = data.measured(Corpus("mine", tuple(clips)))
    mixtures = Mixtures(corpus, corpus, Mixing(time_masks=0, frequency_masks=0), length=ROW)
    utterances = Utterances(corpus, length=None)
    (tmp_path / "1.wav").write_bytes(b"gone")
    for index in range(mixtures.size()):
        assert np.isfinite(mixtures.example(index, np.random.default_rng(0))["audio"]).all()
    assert [len(utterances.example(k, np.random.default_rng(0))["audio"][0]) for k in range(3)] == [16_000] * 3
    assert list(corpus.faults.reasons) == [str(tmp_path / "1.wav")]


def test_pairs_come_as_recorded_or_in_rows(folders: dict[str, Path]) -> None:
    corpus = data.prepared(data.open_corpus(folders["voicebank"], splits=["test"]))
    examples = Pairs(corpus)
    same_twice(examples)
    item = examples.example(0, np.random.default_rng(0))
    noisy, clean = data.pairs(corpus)[0]
    np.testing.assert_array_equal(item["audio"][0], corpus.load(noisy))
    np.testing.assert_array_equal(item["clean"][0], corpus.load(clean))
    for length in (5000, 20_000):
        item = Pairs(corpus, length).example(0, np.random.default_rng(0))
        assert item["audio"].shape == item["clean"].shape == (1, length)
        assert item["samples"] == min(length, 16_000)
    with pytest.raises(ValueError, match="no pairs"):
        Pairs(corpus.where(kind="clean"))


def test_keywords_come_after_other_audio(words: tuple[Corpus, Corpus]) -> None:
    examples = Keywords(words[0], ["yes", "no"], words[1], background=0.25)
    same_twice(examples)
    assert examples.classes == ("yes", "no", "background")
    assert examples.size() == 25
    labels = [int(examples.example(k, np.random.default_rng(k))["label"]) for k in range(25)]
    assert [labels.count(k) for k in range(3)] == [10, 10, 5]
    item = examples.example(0, np.random.default_rng(0))
    assert item["audio"].shape == (1, 32_000)
    assert item["start"] == 16_000


def test_a_word_without_variation_is_the_recording(words: tuple[Corpus, Corpus]) -> None:
    examples = Keywords(words[0], variation=NONE)
    assert examples.classes == ("bed", "left", "no", "yes")
    clip = examples.words[3]
    item = examples.example(3, np.random.default_rng(0))
    np.testing.assert_array_equal(item["audio"][0], fit(words[0].load(clip), 16_000))
    assert examples.classes[int(item["label"])] == clip.labels["word"]


def test_the_history_is_random_and_the_word_is_not(words: tuple[Corpus, Corpus]) -> None:
    quiet = Variation(speed=0, gain_db=0, shift=0, noisy=0, before=0.5)
    examples = Keywords(words[0], noise=words[1], variation=quiet)
    items = [examples.example(0, np.random.default_rng(k))["audio"][0] for k in range(12)]
    assert len({item[:8000].tobytes() for item in items}) > 6
    assert len({item[8000:].tobytes() for item in items}) == 1


def test_a_word_is_mixed_with_another_or_equalised(words: tuple[Corpus, Corpus]) -> None:
    def example(**how: float) -> NDArray[np.float32]:
        variation = replace(NONE, **how)
        examples = Keywords(words[0], noise=words[1], variation=variation)
        return np.stack([examples.example(0, np.random.default_rng(k))["audio"][0] for k in range(20)])

    plain, mixed, sometimes, toned = example(), example(mixed=1.0), example(mixed=0.5), example(tone_db=6.0)
    under = 10 * np.log10(((mixed - plain) ** 2).sum(1) / (plain**2).sum(1))
    assert (under < 0.1).all()
    assert under.min() < -12
    assert under.max() > -6
    assert 3 < (sometimes != plain).any(1).sum() < 17
    louder = np.abs(np.fft.rfft(toned)) / np.maximum(np.abs(np.fft.rfft(plain)), 1e-9)
    strong = np.abs(np.fft.rfft(plain)) > 1e-2 * np.abs(np.fft.rfft(plain)).max()
    assert 1.2 < louder[strong].max() < 2.3
    assert 0.45 < louder[strong].min() < 0.85


def test_speech_with_none_of_the_words_is_background(words: tuple[Corpus, Corpus], folders: dict[str, Path]) -> None:
    speech = data.prepared(data.open_corpus(folders["librispeech"], splits=["train"]))
    said = speech[0].labels["transcript"].lower().split()[0]
    kept = without_words(speech, [said.upper()])
    assert 0 < len(kept) < len(speech)
    assert all(said not in clip.labels["transcript"].lower().split() for clip in kept)
    assert not len(without_words(words[0], ["yes"]))  # no transcript says what is spoken
    quiet = Variation(speed=0, gain_db=0, shift=0, noisy=0, before=0)
    examples = Keywords(words[0].where(word="yes"), ["yes"], words[1], 10.0, quiet, speech=kept)
    backgrounds = [examples.example(len(examples.words) + k, np.random.default_rng(k))["audio"][0] for k in range(40)]
    whole = np.concatenate([kept.load(clip) for clip in kept])
    result = sum(_holds(whole, x[4000:4050]) for x in backgrounds)
    assert 5 < result < 30


def _holds(whole: NDArray[np.float32], part: NDArray[np.float32]) -> bool:
    """Whether the part occurs, sample for sample."""
    starts = np.flatnonzero(whole[: -len(part)] == part[0])
    return bool(part.any()) and any(np.array_equal(whole[k : k + len(part)], part) for k in starts)


def test_keywords_need_words(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="no clips with a word"):
        Keywords(data.open_corpus(folders["mls"]))


def test_rows_of_utterances_have_their_texts(folders: dict[str, Path]) -> None:
    corpora = [data.prepared(data.open_corpus(folders[name], splits=["train"])) for name in ("librispeech", "mls")]
    length = max(clip.frames for corpus in corpora for clip in corpus) * 2
    examples = Utterances(
        [(corpora[0], 1.0), (corpora[1], 0.5)], length, encode=lambda text: {"n": np.array(len(text))}
    )
    same_twice(examples)
    said = [word for index in range(len(examples)) for word in examples.text(index).split()]
    expected = [word for corpus in corpora for clip in corpus for word in clip.labels["transcript"].split()]
    assert sorted(said) == sorted(expected)
    item = examples.example(0, np.random.default_rng(0))
    assert item["audio"].shape == (1, length)
    assert item["n"] == len(examples.text(0))
    assert not item["audio"][0, int(item["samples"]) :].any()
    alone = Utterances(corpora[0], length=None)
    np.testing.assert_array_equal(alone.example(2, np.random.default_rng(0))["audio"][0], corpora[0].load(2))
    with pytest.raises(ValueError, match="no utterances; 9 are longer"):
        Utterances(corpora[0], length=100)


def texts(*lines: str) -> Corpus:
    return Corpus("t", tuple(Clip(Path(f"{k}.wav"), str(k), labels={"transcript": t}) for k, t in enumerate(lines)))


def test_texts_like_held_out_ones_are_removed() -> None:
    held = texts("the quick brown fox jumps over the lazy dog", "yes")
    train = texts(
        "The quick, brown fox jumps over the lazy dog!",
        "we saw the quick brown fox jumps over it",
        "a quick brown fox jumped over a lazy dog",
        "Yes.",
        "yes of course",
        "",
    )
    kept, leaks = data.without_leaks(train, held)
    assert [clip.id for clip in kept] == ["2", "4", "5"]
    assert [(leak.clip.id, leak.held_out.id) for leak in leaks] == [("0", "0"), ("1", "0"), ("3", "1")]
    assert leaks[0].similarity == 1
    assert leaks[1].similarity == pytest.approx(3 / 6)
    assert len(data.without_leaks(train, held, limit=0.6)[1]) == 2


def test_synthetic_noise_has_the_spectrum_it_should() -> None:
    rng = np.random.default_rng(0)
    hertz = np.fft.rfftfreq(65_536, 1 / 16_000)
    for slope in (0.0, 0.5, 1.0):
        x = augment.coloured(rng, 65_536, slope)
        assert audio.dbfs(x) == pytest.approx(0, abs=1e-3)
        power = np.square(np.abs(np.fft.rfft(x)))
        low, high = (power[(hertz > f) & (hertz < 1.3 * f)].mean() for f in (500, 4000))
        assert 10 * np.log10(low / high) == pytest.approx(20 * slope * np.log10(8), abs=1.5)
    x = augment.hum(rng, 65_536, mains=50)
    strongest = hertz[np.argsort(np.abs(np.fft.rfft(x)))[-3:]]
    assert all(abs(f / 50 - round(f / 50)) < 0.05 * max(1, f / 50) for f in strongest)


def test_noises_are_put_together_at_their_levels() -> None:
    rng = np.random.default_rng(0)
    one, two = (rng.normal(0, s, 50_000).astype(np.float32) for s in (0.3, 0.001))
    both = augment.combine(one, (two, -10.0))
    share = both @ two / (two @ two) * two
    assert audio.dbfs(share) - audio.dbfs(both - share) == pytest.approx(-10, abs=0.2)
    assert audio.dbfs(augment.babble([one, two, one * 0])) == pytest.approx(0, abs=1e-3)
    noisy, clean = augment.limited(one * 9, one)
    assert np.abs(noisy).max() == pytest.approx(0.99)
    assert noisy[5] / clean[5] == pytest.approx(9, rel=1e-4)


@pytest.mark.parametrize("frames", [10, 999, 1000, 5000])
def test_a_short_noise_is_repeated_without_a_click(frames: int) -> None:
    x = np.sin(2 * np.pi * 3 * np.arange(1000) / 1000).astype(np.float32)
    y = augment.looped(np.random.default_rng(0), x, frames)
    assert len(y) == frames
    assert np.abs(np.diff(y)).max() < 0.05
    assert augment.looped(np.random.default_rng(0), x[:0], 7).tolist() == [0] * 7
