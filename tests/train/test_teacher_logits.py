"""``centaurus teacher-logits`` with a small random wav2vec2: label orders, resuming, parts, and training from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from centaurus.train.targets import CHARACTERS, FRAME, TORCHAUDIO, Precomputed, Wav2Vec2, label_order, logits_file
from tests import corpora
from tests.cli.run import run

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def save_teacher(folder: Path, names: tuple[str, ...], vocabulary: bool = True) -> Path:
    """A wav2vec2 of one narrow layer with random weights, as transformers saves one."""
    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(
        vocab_size=len(names), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        conv_dim=(8,) * 7, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    transformers.Wav2Vec2ForCTC(config).save_pretrained(folder)
    if vocabulary:
        (folder / "vocab.json").write_text(json.dumps({name: k for k, name in enumerate(names)}))
    return folder


def test_both_public_orders_are_mapped(tmp_path: Path) -> None:
    assert label_order(None, 32) == list(range(32))
    order = label_order(None, 29)
    assert [TORCHAUDIO[k] if k >= 0 else None for k in order] == [
        None if name in ("<s>", "</s>", "<unk>") else name for name in CHARACTERS
    ]
    path = tmp_path / "vocab.json"
    path.write_text(json.dumps({name.lower() if len(name) == 1 else name: 31 - k for k, name in enumerate(CHARACTERS)}))
    assert label_order(path, 32) == list(range(31, -1, -1))
    path.write_text(json.dumps({"<pad>": 0, "|": 1, "E": 2}))
    with pytest.raises(ValueError, match="vocabulary lacks T A O"):
        label_order(path, 3)
    with pytest.raises(ValueError, match=r"7 outputs and no vocab\.json"):
        label_order(None, 7)


def test_columns_are_put_where_the_head_has_them(tmp_path: Path) -> None:
    shuffled = tuple(np.random.default_rng(0).permutation(CHARACTERS).tolist())
    teacher = Wav2Vec2(save_teacher(tmp_path / "own", shuffled))
    plain = Wav2Vec2(save_teacher(tmp_path / "plain", TORCHAUDIO, vocabulary=False))
    audio = torch.randn(1, 1, 8000)
    result, raw = teacher(audio), teacher.model((audio[:, 0] - audio.mean()) / audio.std(correction=0)).logits
    assert result.shape == (1, 32, 8000 // FRAME - 1)
    for k, name in enumerate(CHARACTERS):
        torch.testing.assert_close(result[0, k], raw[0, :, shuffled.index(name)], atol=1e-4, rtol=1e-3)
    absent = [CHARACTERS.index(name) for name in ("<s>", "</s>", "<unk>")]
    assert plain(audio).softmax(1)[:, absent].max() < 1e-7


def test_logits_are_written_once_in_parts_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = corpora.librispeech(tmp_path / "data")
    teacher, out = save_teacher(tmp_path / "teacher", CHARACTERS), tmp_path / "logits"
    command = ("teacher-logits", "--data", str(data), "--teacher", str(teacher), "--out", str(out), "--json")
    first = json.loads(run(capsys, *command, "--part", "1/2").out)
    second = json.loads(run(capsys, *command, "--part", "2/2").out)
    files = sorted(out.rglob("*.npy"))
    assert first["done"] + second["done"] == len(files) > 1
    assert first["before"] == second["before"] == 0
    before = [path.stat().st_mtime_ns for path in files]
    files[0].unlink()
    again = json.loads(run(capsys, *command).out)
    assert (again["done"], again["before"]) == (1, len(files) - 1)
    assert [path.stat().st_mtime_ns for path in files[1:]] == before[1:]
    name = files[0].stem
    assert files[0] == logits_file(out, name)
    stored = np.load(files[0])
    assert stored.dtype == np.float16
    placed = Precomputed(out).logits([(0, name)], FRAME * (stored.shape[1] + 3))
    np.testing.assert_array_equal(placed[:, : stored.shape[1]], stored.astype(np.float32))
    wrong = run(capsys, *command, "--part", "3/2")
    assert wrong.code == 2
    assert "--part is K/N" in wrong.err
