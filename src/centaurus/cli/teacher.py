"""``centaurus teacher-logits``: what a wav2vec2 model says about every utterance, once, for distillation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centaurus.cli import output

LENGTH = 327_680  # samples of the rows of an index: those of training, so that both use the same one
EVERY = 1000  # utterances between two lines of progress


def teacher_logits(
    data: Annotated[Path, typer.Option(help="Recordings with texts: LibriSpeech, MLS, or a pack.")],
    teacher: Annotated[Path, typer.Option(help="A wav2vec2 CTC model as transformers saves it: a local folder.")],
    out: Annotated[Path, typer.Option(help="The folder of logits, to be given to train asr as teacher=FOLDER.")],
    split: Annotated[str, typer.Option(help="The split whose utterances are done.")] = "train",
    part: Annotated[str, typer.Option(help="K/N does the K-th of N parts, for N processes beside each other.")] = "1/1",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    json: output.Json = False,
) -> None:
    """Write a teacher's character logits for every utterance. Stop whenever you like: the same command goes on."""
    from centaurus.data import Corpus, Index, measured, open_corpus, open_index, recognise
    from centaurus.train.teachers import Wav2Vec2, write_logits

    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--part is K/N with 1 <= K <= N, such as 3/8: got {part!r}")
    model = Wav2Vec2(teacher)
    found: Corpus | Index
    if recognise(data) == "mls":
        found = open_index(data, [], LENGTH, split=split)
    else:
        found = measured(open_corpus(data, [split], ["speech"]))
    if not len(found):
        raise ValueError(f"{data} has no utterances in {split}")
    written = write_logits(model, found, out, (int(number) - 1, int(count)), device, None if json else _watch)
    if json:
        output.show_json({"done": written.done, "before": written.before, "faults": written.faults})
        return
    for path, reason in written.faults.items():
        output.note(f"{path}: {reason}")
    output.show(f"{written.done} utterances done, {written.before} were there; logits in {out}")


def _watch(count: int, total: int) -> None:
    if count % EVERY == 0:
        output.note(f"{count} of {total} utterances")
