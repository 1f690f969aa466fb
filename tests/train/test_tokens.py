"""Transcripts to numbers and back, teachers, and the recogniser's losses."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from centaurus.decode import normalise
from centaurus.models import RecognizerTable, Row, recognizer
from centaurus.system import ContentError
from centaurus.train import losses
from centaurus.train.objectives import Recognise, text_bytes, text_of
from centaurus.train.targets import CHARACTERS, FRAME, Precomputed, Wav2Vec2, characters, read_tokens

PIECES = ["[PAD]", "[UNK]", "'", "don", "##t", "t", "go", "##ing", "home", "cat", "[CLS]", "[SEP]", "[MASK]"]
TABLE = RecognizerTable((Row("full", 320, 8, 2),), (Row("pointwise", 2, 8, 4),))


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


def test_transcripts_are_normalised() -> None:
    assert normalise("Don’t GO — “home”,  now!") == "don't go home now"


def test_characters_and_words_of_transcripts() -> None:
    letters = read_tokens("characters", ["AB a", "b"])
    assert letters.names == ("<blank>", " ", "a", "b")
    assert letters.encode("Ba b?") == [3, 2, 1, 3]
    words = read_tokens("words", ["go home", "go"])
    assert words.names == ("<blank>", "go", "home")
    assert words.encode("home go away") == [2, 1]
    marked = read_tokens("marked", ["go home", "go"])
    assert marked.names == ("<blank>", "go", "home", "<start>")
    assert marked.encode("home go") == [2, 1]


def test_word_pieces_of_a_file(vocabulary: Path) -> None:
    tokens = read_tokens(str(vocabulary), [])
    assert tokens.encode("Going home, zebra") == [6, 7, 8, 1]
    used = read_tokens(f"used:{vocabulary}", ["going home"])
    assert used.names == ("[PAD]", "[UNK]", "go", "##ing", "home")
    assert used.encode("going home cat") == [2, 3, 4, 1]


def test_an_error_names_a_file_that_is_not_a_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"words.txt: is not a WordPiece vocabulary"):
        read_tokens(str(tmp_path / "words.txt"), [])
    with pytest.raises(ValueError, match="there is no nowhere"):
        read_tokens("nowhere", [])


def test_the_character_head_spells() -> None:
    assert "".join(CHARACTERS[k] for k in characters("Don't go 2 home")) == "DON'T|GO||HOME"


def test_text_travels_as_bytes() -> None:
    padded = np.concatenate([text_bytes("Grüße, Du"), np.zeros(5, np.uint8)])
    assert text_of(torch.from_numpy(padded)) == "grüße du"


def batch(samples: int = 3200) -> dict[str, torch.Tensor]:
    audio = torch.randn(2, 1, samples, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[2, 1, 0], [1, 0, 0]])
    lengths = torch.tensor([2, 1])
    words = [text_bytes("b a"), text_bytes("a")]
    text = torch.from_numpy(np.stack([np.pad(w, (0, 4 - len(w))) for w in words]))
    return {
        "audio": audio, "samples": torch.tensor([samples, samples // 2]), "text": text, "tokens": ids,
        "tokens_length": lengths, "letters": ids, "letters_length": lengths,
        "teacher": torch.randn(2, len(CHARACTERS), samples // FRAME - 1),
    }  # fmt: skip


@pytest.mark.parametrize("weights", ["tokens:1", "tokens:1, characters:0.5", "tokens:1, distillation:1"])
def test_every_trained_parameter_gets_a_gradient(weights: str) -> None:
    net = recognizer(TABLE, vocabulary=3, settings={"tokens": ["<blank>", "a", "b"]})
    objective = Recognise(net, weights)
    terms = objective(batch(), 0.5)
    terms["loss"].backward()
    assert set(terms) == {"loss", *(part.split(":")[0].strip() for part in weights.split(","))}
    trained = {name: p for name, p in objective.named_parameters() if p.requires_grad}
    assert all(p.grad is not None for p in trained.values())
    assert any(name.startswith("net.characters") for name in trained) == (weights != "tokens:1")
    with torch.no_grad():
        figures = objective.measure(net.eval(), batch())
    assert figures["cer"][1] == 4
    assert figures["wer"][1] == 3


class FakeModel(torch.nn.Module):
    """Stands in for transformers' model: one frame fewer than samples / 320."""

    config = types.SimpleNamespace(vocab_size=len(CHARACTERS))

    def forward(self, rows: torch.Tensor) -> Any:
        assert torch.allclose(rows.var(-1, unbiased=False), torch.ones(len(rows)), atol=1e-3)
        return types.SimpleNamespace(logits=rows.unfold(1, 400, FRAME)[..., : len(CHARACTERS)])


def test_a_local_teacher_is_asked_through_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def from_pretrained(path: str, **options: Any) -> FakeModel:
        asked.update(options, path=path)
        return FakeModel()

    fake = types.ModuleType("transformers")
    fake.Wav2Vec2ForCTC = types.SimpleNamespace(from_pretrained=from_pretrained)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", fake)
    teacher = Wav2Vec2(tmp_path)
    assert asked == {"path": str(tmp_path), "local_files_only": True}
    net = recognizer(TABLE, vocabulary=3, settings={"tokens": ["<blank>", "a", "b"]})
    objective = Recognise(net, "tokens:1, distillation:1", teacher)
    terms = objective(batch(), 0.0)
    assert bool(terms["distillation"].isfinite())
    assert not any("teacher" in name for name in objective.state_dict())


def test_without_transformers_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"transformers is needed .*\[teacher\]"):
        Wav2Vec2(tmp_path)
    with pytest.raises(ValueError, match="local folder"):
        Wav2Vec2(tmp_path / "nothing")


def test_stored_logits_are_placed_at_their_utterance(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.ones((len(CHARACTERS), 4), np.float16))
    whole = Precomputed(tmp_path).logits([(640, "one")], 3200)
    assert whole.shape == (len(CHARACTERS), 10)
    assert (whole[1] == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0]).all()
    with pytest.raises(ValueError, match=r"no logits for utterance two: there is no .*two.npy"):
        Precomputed(tmp_path).logits([(0, "two")], 3200)
    np.save(tmp_path / "bad.npy", np.ones((3, 4)))
    with pytest.raises(ContentError, match=r"bad.npy: should be \(32, frames\)") as raised:
        Precomputed(tmp_path).logits([(0, "bad")], 3200)
    assert raised.value.path == tmp_path / "bad.npy"


def test_words_are_aligned_with_their_times() -> None:
    """Frames of 40 ms: beginnings up to 100 ms after a start, words from 100 ms before their ends until 50 ms after."""
    tokens = ["<blank>", "go", "up", "<start>"]
    net = recognizer(TABLE, vocabulary=4, settings={"sample_rate": 16_000, "tokens": tokens})
    objective = Recognise(net, "tokens:1, starts:1, ends:1")
    times = {"starts": torch.tensor([[3200, 9600], [0, 0]]), "ends": torch.tensor([[9600, 16_000], [1600, 0]])}
    said = {"tokens": torch.tensor([[1, 2], [2, 0]]), "tokens_length": torch.tensor([2, 1])}
    batch = {"audio": torch.randn(2, 1, 17_920), "samples": torch.tensor([17_920, 3200]), **times, **said}
    words, begun = objective.alignment(batch, 28)
    assert words[0].tolist() == [0] * 12 + [1] * 4 + [0] * 6 + [2] * 4 + [0] * 2
    assert words[1].tolist() == [2] * 4 + [0] * 24
    assert begun.nonzero().tolist() == [[0, 5], [0, 6], [0, 15], [0, 16], [1, 0], [1, 1]]
    frames = torch.tensor([28, 5])
    certain = 50 * torch.nn.functional.one_hot(words, 4).transpose(1, 2).float()
    certain[:, 3] = torch.where(begun, 50.0, -50.0)
    certain[1, :, 5:] = torch.randn(4, 23)  # padding does not count
    assert float(losses.framed(certain[:, :3], words, frames)) < 1e-6
    assert float(losses.begun(certain, begun, frames)) < 1e-6
    for name in ("tokens", "starts", "ends"):
        assert objective.term(name, objective.outputs(batch), batch).item() > 0.1
    with pytest.raises(ValueError, match="need the times of words"):
        objective.alignment(said, 28)


@pytest.mark.parametrize(
    ("tokens", "weights", "words"),
    [
        (["<blank>", " ", "a"], "ends:1", "vocabulary of words, not of characters"),
        (["<blank>", "go", "up"], "starts:1", "vocabulary=marked"),
    ],
)
def test_losses_of_times_need_a_vocabulary_for_them(tokens: list[str], weights: str, words: str) -> None:
    net = recognizer(TABLE, vocabulary=3, settings={"sample_rate": 16_000, "tokens": tokens})
    with pytest.raises(ValueError, match=words):
        Recognise(net, weights)
