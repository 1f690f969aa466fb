"""``centaurus train``, ``teacher-logits``, ``data``, ``eval``, ``export`` and ``push``: train, evaluate, publish."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from centaurus.cli import output
from centaurus.cli.networks import check_file, network
from centaurus.tasks import RECIPES

if TYPE_CHECKING:
    from centaurus.evaluation import Evaluation, Model
    from centaurus.train.config import Training
    from centaurus.train.run import Run

HIDDEN = ("kind", "step", "best", "seconds", "epoch", "progress", "lr", "norm", "audio_per_second")
LENGTH = 327_680  # samples of a row of an index: as in training, so that both share one index
EVERY = 1000  # utterances between two lines of progress
PIECE = 1 << 14  # samples: lengths are padded to multiples of it, so that there are few plans; the network is causal


def train(
    recipe: Annotated[str | None, typer.Argument(help=f"One of {', '.join(RECIPES)}.")] = None,
    settings: Annotated[list[str] | None, typer.Argument(help="key=value, such as minutes=30 batch=8.")] = None,
    data: Annotated[Path | None, typer.Option(help="A folder of recordings, in any known layout.")] = None,
    preset: Annotated[str | None, typer.Option(help="paper (the default), ours or small; settings change it.")] = None,
    small: Annotated[bool, typer.Option("--small", help="Minutes of training on two cores: --preset small.")] = False,
    out: Annotated[Path | None, typer.Option(help="The run folder to create; runs/RECIPE-1, -2 … by default.")] = None,
    resume: Annotated[Path | None, typer.Option(help="A run folder to continue, exactly where it stopped.")] = None,
    corrections: Annotated[
        Path | None, typer.Option(help="For wake: a folder with missed/ and alarms/ collected in use.")
    ] = None,
    allow_changed_data: Annotated[
        bool, typer.Option("--allow-changed-data", help="With --resume: continue although clips were added or changed.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Only show the settings.")] = False,
    json: output.Json = False,
) -> None:
    """Train a model on a folder of recordings.

    On several GPUs: torchrun --nproc-per-node 8 -m centaurus train …
    """
    _check(recipe, settings or (), data, preset, small, out, resume, show)
    from centaurus.system import choose_threads

    threads = choose_threads(os.environ)  # before torch is imported, which reads it once
    from centaurus.recipes import launch
    from centaurus.train.config import explain, override, to_data
    from centaurus.train.run import Run, TrainingError

    if resume is not None:
        pairs = [*([recipe] if recipe else []), *(settings or [])]
        run = Run.existing(resume)
        recipe, config, folder = launch.described(run)
        config = launch.extend(run, config, pairs)
        folder = data or folder
    else:
        assert recipe is not None
        more = [] if corrections is None else [f"corrections={corrections}"]
        config = override(launch.configure(recipe, "small" if small else preset), [*(settings or []), *more])
        if show:
            _show(to_data(config), explain(type(config)), json)
            return
        assert data is not None
        folder = data
        run = launch.start(recipe, config, folder, out or _next_folder(recipe))
    try:
        with Display(config, json) as display:
            display.machine(threads)
            before = run.last_checkpoint()
            standing = launch.train(run, recipe, config, folder, display if display.first else None, allow_changed_data)
            launch.leave()
    except TrainingError as error:
        output.fail(error, output.exit_code(error))
    except KeyboardInterrupt as error:
        output.fail(_stopped(run), output.exit_code(error))
    if display.first:
        if before is not None and run.last_checkpoint() == before and not json:
            output.show(
                f"{run.folder} was finished already: nothing was trained. To continue: "
                f"centaurus train --resume {run.folder} with more steps=, epochs= or minutes="
            )
        _end(run, standing.step, json)


def _stopped(run: Run) -> str:
    """Return a message about what an interrupted run has saved."""
    if not run.folder.exists():
        return "stopped before the first step: nothing was saved"
    if run.last_checkpoint() is None:
        return f"stopped before the first checkpoint: centaurus train --resume {run.folder} starts again"
    return f"stopped; centaurus train --resume {run.folder} continues from its last checkpoint"


def _check(
    recipe: str | None,
    settings: Sequence[str],
    data: Path | None,
    preset: str | None,
    small: bool,
    out: Path | None,
    resume: Path | None,
    show: bool,
) -> None:
    """Check the options before torch is imported, which takes seconds."""
    if data is not None and not data.is_dir():
        what = "is not a folder: --data is a folder of recordings" if data.exists() else "there is no such folder"
        output.fail(f"--data {data}: {what}", output.INPUT)
    if resume is not None:
        pairs = [*([recipe] if recipe else []), *settings]
        if any("=" not in pair for pair in pairs) or small or preset or out is not None:
            raise ValueError(
                "--resume continues a run with its own settings: give nothing else but --data if it has moved, "
                "or minutes=, epochs= or steps= to extend it"
            )
        if not (resume / "config.json").is_file():
            output.fail(f"{resume} is not a run folder: it has no config.json", output.MODEL)
        return
    if recipe is None:
        raise ValueError(f"which recipe? {', '.join(RECIPES[:-1])} or {RECIPES[-1]}; or --resume RUN")
    if recipe not in RECIPES:
        close = get_close_matches(recipe, RECIPES, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(RECIPES)}"
        raise ValueError(f"there is no recipe {recipe!r}; {hint}")
    for text in settings:
        if "=" not in text:
            raise ValueError(f"settings are given as key=value, got {text!r}")
    if small and preset:
        raise ValueError(f"--small is --preset small: give it or --preset {preset}, not both")
    if not show and data is None:
        raise ValueError("--data FOLDER is needed: the recordings to learn from")
    if not show and out is not None and (out / "config.json").exists():
        from centaurus.system import OutputError

        raise OutputError(f"already holds a run: resume it with --resume {out}, or choose another --out", out)


def _show(settings: dict[str, Any], meanings: dict[str, str], json: bool) -> None:
    """Print every setting with its value and meaning; as JSON only the values, as a run keeps them."""
    if json:
        output.show_json(settings)
        return
    rows = [[name, str(value) or '""', meanings[name]] for name, value in settings.items()]
    output.show_table(["setting", "value", "meaning"], rows, text=("value", "meaning"))
    output.show("\nChange them with key=value, such as minutes=30 batch=16.")


def _next_folder(recipe: str) -> Path:
    """Return the first of runs/kws-1, runs/kws-2 … that does not exist."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("with several processes give --out RUN, so that all write to one folder")
    number = 1
    while (folder := Path("runs") / f"{recipe}-{number}").exists():
        number += 1
    return folder


def _end(run: Run, step: int, json: bool) -> None:
    """Print the figures of the best model, which may be from an earlier part of the run, and its path."""
    from centaurus.train.run import LIVE

    folder, kept = run.folder, {name: value for name, value in run.best().items() if name not in HIDDEN}
    live = run.read_json(LIVE) if (run.folder / LIVE).is_file() else {}
    if json:
        result = {"run": str(folder), "model": str(folder / "best.safetensors"), "step": step, **kept}
        output.show_json(result | ({"live": live} if live else {}))
        return
    output.show(f"{step} steps. Best: {_words(kept)}\n{folder / 'best.safetensors'}, described in {folder / 'card.md'}")
    if live:
        output.show(f"{folder / live['model']}: {live['description']}")


def _words(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


class Display:
    """Shows a progress bar with speed and losses, and prints a line for every validation."""

    def __init__(self, config: Training, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.first = os.environ.get("RANK", "0") == "0"
        self.console = Console(stderr=True, highlight=False, markup=False, quiet=quiet or not self.first)
        columns = [TextColumn("{task.description}"), BarColumn(20), TimeRemainingColumn(elapsed_when_finished=True)]
        self.progress = Progress(*columns, TextColumn("{task.fields[now]}"), console=self.console)
        self.task = self.progress.add_task("training", total=1.0, now="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def machine(self, threads: str) -> None:
        """Print what the speed depends on."""
        from centaurus.native.build import status

        native = status()
        self.console.print(f"{'threads':>16}  {threads}")
        self.console.print(f"{'native kernels':>16}  {'used' if native.used else f'not used: {native.reason}'}")

    def prepared(self, notes: dict[str, Any], left_out: dict[str, str]) -> None:
        """Print a summary of the data."""
        for name, value in notes.items():
            shown = f"{len(value)}: {', '.join(map(str, value))}" if isinstance(value, list) else value
            self.console.print(f"{name.replace('_', ' '):>16}  {shown}")
        if left_out:
            name, why = next(iter(left_out.items()))
            self.console.print(f"{'left out':>16}  {len(left_out)}, such as {name}: {why} (all: data.json)")

    def trained(self, record: dict[str, Any]) -> None:
        losses = {name: value for name, value in record.items() if name not in HIDDEN}
        now = f"step {record['step']} · {record['audio_per_second']:.0f} audio-s/s · {_words(losses)}"
        self.progress.start()
        self.progress.update(self.task, completed=record["progress"], now=now)

    def validated(self, record: dict[str, Any], best: bool) -> None:
        """Print the metrics of a validation above the bar."""
        kept = {name: value for name, value in record.items() if name not in HIDDEN}
        self.console.print(f"step {record['step']:>7}  {_words(kept)}{'  (best)' if best else ''}")


def teacher_logits(
    data: Annotated[Path, typer.Option(help="Recordings with texts: LibriSpeech, MLS, or a pack.")],
    teacher: Annotated[Path, typer.Option(help="A wav2vec2 CTC model as transformers saves it: a local folder.")],
    out: Annotated[Path, typer.Option(help="The folder of logits, to be given to train asr as teacher=FOLDER.")],
    split: Annotated[str, typer.Option(help="The split to process.")] = "train",
    part: Annotated[str, typer.Option(help="K/N does the K-th of N parts, for N parallel processes.")] = "1/1",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    json: output.Json = False,
) -> None:
    """Write a teacher's character logits for every utterance.

    It can be interrupted at any time: the same command continues.
    """
    from centaurus.data import Corpus, Index, measured, open_corpus, open_index, recognise
    from centaurus.train.targets import Wav2Vec2, write_logits

    number, _, count = part.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--part is K/N with 1 <= K <= N, such as 3/8: got {part!r}")
    model = Wav2Vec2(teacher)
    utterances: Corpus | Index
    if recognise(data) == "mls":
        utterances = open_index(data, [], LENGTH, split=split)
    else:
        utterances = measured(open_corpus(data, [split], ["speech"]))
    if not len(utterances):
        raise ValueError(f"{data} has no utterances in {split}")
    written = write_logits(model, utterances, out, (int(number) - 1, int(count)), device, None if json else _note_count)
    if json:
        output.show_json({"done": written.done, "before": written.before, "faults": written.faults})
        return
    for path, reason in written.faults.items():
        output.note(f"{path}: {reason}")
    output.show(f"{written.done} utterances done, {written.before} existed already; logits in {out}")


def _note_count(count: int, total: int) -> None:
    if count % EVERY == 0:
        output.note(f"{count} of {total} utterances")


corpora = typer.Typer(no_args_is_help=True, help="Find, check and unpack public corpora.", rich_markup_mode=None)


@corpora.command("get")
def get_corpus(
    name: Annotated[str | None, typer.Argument(help="A corpus; without one, they are listed.")] = None,
    downloads: Annotated[
        Path | None, typer.Option("--from", help="A folder with archives that you have downloaded.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to create.", show_default="NAME")] = None,
    json: output.Json = False,
) -> None:
    """Check the archives of a corpus and unpack them; without a name, list the corpora and where they come from.

    Archives are taken from the folder given by --from. Those that are not there are downloaded, if their host can be
    reached.
    """
    from centaurus.data.layouts import SOURCES, get

    if name is None:
        _list_corpora(json)
        return
    if downloads is not None and not downloads.is_dir():
        raise ValueError(f"--from {downloads}: there is no such folder")
    folder = out or Path(name)
    with output.progress_bar(f"getting {name}", None) as moved:
        layout = get(name, folder, downloads, moved)
    if json:
        output.show_json({"folder": str(folder), "layout": layout})
    else:
        output.show(f"{folder}: {SOURCES[name].content} (layout {layout})")


def _list_corpora(json: bool) -> None:
    from centaurus.data.layouts import SOURCES

    if json:
        output.show_json(
            {
                name: {"content": s.content, "licence": s.licence, "page": s.page, "files": [a.url for a in s.archives]}
                for name, s in SOURCES.items()
            }
        )
        return
    for name, s in SOURCES.items():
        output.show_line(f"{name}: {s.content}, {s.licence}\n  {s.page}")
        output.show_line(f"  from {s.archives[0].url.removesuffix(s.archives[0].name)}")
        for archive in s.archives:
            output.show_line(f"    {archive.name}\n      {archive.checksum or 'no checksum published'}")
    output.show("\ncentaurus data get NAME --from FOLDER checks and unpacks archives that you have downloaded.")


def evaluate(
    model: Annotated[str, typer.Argument(help="A model file (.safetensors or .onnx) or a shipped model's name.")],
    data: Annotated[Path, typer.Option(help="A folder of recordings, in any known layout.")],
    split: Annotated[str | None, typer.Option(help="train, val or test; by default test, or val without one.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Evaluate this many clips, evenly spaced; 0 for all.")] = 0,
    noise: Annotated[Path | None, typer.Option(help="Noise to mix speech with.")] = None,
    others: Annotated[
        Path | None, typer.Option(help="For keywords: audio without them, to count false alarms in.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for tables and a plot.")] = None,
    json: output.Json = False,
) -> None:
    """Measure a model on a folder of recordings.

    Accuracy; PESQ, STOI, SI-SDR and DNSMOS; or word and character error rates.
    """
    from centaurus.evaluation import evaluate as measure
    from centaurus.evaluation import evaluate_live, save_curve, write

    evaluated = engine(model)
    with output.progress_bar(f"measuring {Path(model).name}", None, "clips") as done:
        report = measure(_counted(evaluated, done), data, split, limit, noise)
    written = write(report, out) if out is not None else []
    if others is not None:
        with output.progress_bar("counting false alarms", None):
            points = evaluate_live(evaluated, report, data, split, noise, others)
        written += save_curve(points, out) if out is not None else []
    if json:
        output.show_json(report.json())
        return
    _show_evaluation(report)
    for path in written:
        output.show(path)


def _counted(model: Model, done: Callable[[float], object]) -> Model:
    """Return the model with a progress bar that advances with every clip."""

    def run(x: Any) -> Any:
        frames = model.run(x)
        done(1)
        return frames

    return replace(model, run=run)


def engine(model: str) -> Model:
    """Return the model to evaluate, in torch or in onnxruntime."""
    if model.endswith(".onnx"):
        from centaurus.evaluation import exported
        from centaurus.runtime import Session

        return exported(Session(model))
    check_file(model)
    return _network(model)


def _network(model: str) -> Model:
    import torch

    from centaurus.evaluation import Model
    from centaurus.models import load_network
    from centaurus.nn import Stream
    from centaurus.tasks import TASKS

    net = load_network(model)
    known = net.settings

    @torch.inference_mode()
    def run(x: Any) -> Any:
        audio = torch.nn.functional.pad(torch.from_numpy(x), (0, -len(x) % PIECE))
        return net.aligned(audio[None, None])[0, :, : net.frames(len(x))].numpy()

    meaning = TASKS[net.task].outputs
    if meaning and not known.get(meaning):
        raise ValueError(f"{model} has no {meaning} in its settings: its outputs cannot be decoded")
    rate, classes, tokens = int(known["sample_rate"]), known.get("classes", ()), known.get("tokens", ())

    def listen() -> Any:
        stream = Stream(net)
        return torch.inference_mode()(lambda x: stream(torch.from_numpy(x)[None, None])[0].numpy())

    window, caution = known.get("window"), known.get("caution", 0.0)
    return Model(net.task, rate, net.ratio, classes, tokens, run, listen, window, caution)


def _show_evaluation(report: Evaluation) -> None:
    output.show_table(["figure", ""], [[name, cell] for name, cell in _cells(report.figures).items()])
    if report.groups:
        rows = [_cells(group) for group in report.groups]
        names = list(dict.fromkeys(name for row in rows for name in row))
        output.show_table(names, [[row.get(name, "") for name in names] for row in rows])
    output.show(f"{len(report.rows)} clips")
    for name, why in list(report.missing.items())[:10]:
        output.show(f"not measured: {name}: {why}")


def _cells(figures: dict[str, Any]) -> dict[str, str]:
    """Return figures as text; one that was also measured before denoising shows both, such as 1.9 → 2.6."""
    after = {name: value for name, value in figures.items() if not name.endswith("_before")}
    before = {name: f"{_number(figures[f'{name}_before'])} → " for name in after if f"{name}_before" in figures}
    return {name: before.get(name, "") + _number(value) for name, value in after.items()}


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def export(
    name: Annotated[
        str, typer.Argument(help="A model file, a shipped model's name, or a network such as denoiser/hybrid.")
    ],
    file: Annotated[
        Path, typer.Option("--output", "-o", help="model.onnx, model.c with model.h beside it, or model.wasm.")
    ],
    chunk: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Samples in one step, a multiple of the hop; give it several times for several files."
        ),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Weights in C: fp32, fp16, or int16 and int8 with a scale for every column.")
    ] = "fp32",
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite existing files.")] = False,
    json: output.Json = False,
) -> None:
    """Write a model's streaming step as ONNX or C.

    It is compared with torch before it is saved.
    """
    check_file(name)
    from centaurus.system import OutputError

    chunks: list[int | None] = [*chunk] if chunk else [None]
    several = len(set(chunks)) > 1
    targets = {n: file.with_name(f"{file.stem}-{n}{file.suffix}") if several else file for n in chunks}
    for target in targets.values():
        if target.exists() and not force:
            raise OutputError("exists already; -f overwrites", target)
        if not target.parent.is_dir():
            raise OutputError(f"there is no folder {target.parent}", target)
    if file.suffix in (".c", ".wasm"):
        _write_c(name, targets, weights, force, json)
        return
    if weights != "fp32":
        raise ValueError(f"--weights {weights} is for steps in C: an ONNX file has fp32 weights")
    from centaurus.export.write import export_and_compare
    from centaurus.runtime.session import Session

    net, rows, data = network(name), [], []
    for samples, target in targets.items():
        made = export_and_compare(net, target, samples)
        settings, size = Session(target).settings, target.stat().st_size
        milliseconds = 1000 * settings.chunk / settings.rate
        numbers = {"bytes": size, "chunk": settings.chunk, "chunk_ms": milliseconds, "states": len(settings.states)}
        data.append({"file": str(target)} | numbers | {"difference": made.difference})
        row = [output.size(size), str(settings.chunk), f"{milliseconds:g}", str(len(settings.states))]
        rows.append([str(target), *row, f"{made.difference:.0e}"])
    if json:
        output.show_json(data)
    else:
        output.show_table(["file", "size", "chunk", "ms", "states", "off by"], rows)


def _write_c(name: str, targets: dict[int | None, Path], weights: str, force: bool, json: bool) -> None:
    """Write a step in C, or as WebAssembly, for every chunk."""
    from centaurus.export.c import export_c, export_wasm

    for target in targets.values():
        if target.suffix == ".c" and target.with_suffix(".h").exists() and not force:
            raise FileExistsError(f"{target.with_suffix('.h')} exists already; -f overwrites")
    net = network(name)
    made = {}
    for samples, target in targets.items():
        write = export_wasm if target.suffix == ".wasm" else export_c
        made[samples] = write(net, target, samples, weights)
    if json:
        output.show_json([one.json() for one in made.values()])
        return
    rows = []
    for samples, one in made.items():
        off = "not compared" if one.difference is None else f"{one.difference:.0e}"
        rows.append(
            [str(one.source), output.size(one.weight_bytes), output.size(one.state_bytes), str(samples or net.hop), off]
        )
    output.show_table(["file", f"{weights} weights", "memory", "chunk", "off by"], rows)
    if any(one.difference is None for one in made.values()):
        output.note("no C compiler was found (CC, cc, gcc, clang): the step was not compared with torch")


def push(
    model: Annotated[str, typer.Argument(help="A .safetensors or .onnx file, or a shipped model's name.")],
    repository: Annotated[str, typer.Argument(metavar="USER/MODEL", help="Created if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
) -> None:
    """Upload a model to the Hugging Face Hub.

    Its card and its other form are uploaded with it if they are beside it. Others then use it as hf:USER/MODEL. Needs
    the package huggingface_hub and its token (hf auth login).
    """
    from centaurus import system

    uploaded = system.push(model, repository, private)
    output.show(f"Uploaded {', '.join(uploaded)}: use it as hf:{repository.removeprefix('hf:')}")
