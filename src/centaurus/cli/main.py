"""The ``centaurus`` command: its groups of commands, and errors turned into messages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from centaurus.cli import audio, networks, output, serve, train

app = typer.Typer(
    help="Denoise speech, find words and transcribe, live on one CPU core; train, measure and export such networks.",
    cls=output.Guarded,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes would leave half of 80 columns for text
)
SECTIONS: dict[str, tuple[Callable[..., None], ...]] = {
    "Use models": (audio.denoise, audio.spot, audio.transcribe, serve.serve, serve.studio, serve.demo, networks.models),
    "Train and publish": (train.train, train.teacher_logits, train.evaluate, train.export, train.push),
    "Look inside": (networks.count, networks.verify, networks.bench, networks.plan, networks.calibrate),
}
NAMES = {train.evaluate: "eval", train.teacher_logits: "teacher-logits"}
for section, commands in SECTIONS.items():
    for command in commands:
        app.command(NAMES.get(command), rich_help_panel=section)(command)
app.add_typer(train.corpora, name="data", rich_help_panel="Train and publish")


def _show_version(requested: bool) -> None:
    if requested:
        from centaurus import __version__

        output.show(f"centaurus {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run a command. An error is one message and an exit code, not a traceback; a usage error exits with 2."""
    output.prepare_streams()
    try:
        app(args=arguments, prog_name="centaurus")
    except ModuleNotFoundError as error:
        from centaurus.system import what_to_install

        command = next((word for word in arguments or sys.argv[1:] if not word.startswith("-")), "")
        output.fail(what_to_install(error, preferred=command))
    except (ValueError, OSError, ImportError, OverflowError, RecursionError) as error:
        output.fail(error, output.exit_code(error))
    except MemoryError:
        output.fail("out of memory", output.FAILED)
