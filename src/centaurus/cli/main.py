"""The ``centaurus`` command: its groups put together, and errors turned into messages."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from centaurus.cli import (
    bench,
    data,
    demo,
    denoise,
    evaluate,
    export,
    faults,
    networks,
    output,
    planning,
    serve,
    spot,
    studio,
    train,
    transcribe,
)

app = typer.Typer(
    help="State-space networks for audio: what there is, what it costs, how it is contracted, whether it is right.",
    cls=faults.Guarded,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command()(denoise.denoise)
app.command()(spot.spot)
app.command()(transcribe.transcribe)
app.command()(serve.serve)
app.command()(train.train)
app.command("teacher-logits")(train.teacher_logits)
app.command("eval")(evaluate.evaluate)
app.add_typer(data.app, name="data")
app.command()(networks.models)
app.command()(networks.count)
app.command()(networks.verify)
app.command()(export.export)
app.command()(export.push)
app.command()(bench.bench)
app.command()(planning.plan)
app.command()(planning.calibrate)
app.command()(demo.demo)
app.command()(studio.studio)


def _show_version(wanted: bool) -> None:
    if wanted:
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
    """Run a command. A fault is one message and its exit code, not a traceback; a mistake in the command line is 2."""
    faults.prepare_streams()
    try:
        app(args=arguments, prog_name="centaurus")
    except ModuleNotFoundError as error:
        from centaurus.system import what_to_install

        command = next((word for word in arguments or sys.argv[1:] if not word.startswith("-")), "")
        output.fail(what_to_install(error, preferred=command))
    except (ValueError, OSError, ImportError, OverflowError, RecursionError) as error:
        output.fail(error, faults.exit_code(error))
    except MemoryError:
        output.fail("there is not enough memory for this", faults.FAILED)
