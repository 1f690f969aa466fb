"""``centaurus serve``, ``studio`` and ``demo``: models over WebSocket, in a browser, and on a clip that ships."""

from __future__ import annotations

import asyncio
import errno
import json as coder
import webbrowser
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centaurus.cli import output

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from centaurus.decode import Keyword

Model = Annotated[str | None, typer.Option(metavar="MODEL", help="An .onnx file or a shipped model.")]
LATE = 0.6  # seconds after the end of a word until which a report of it counts
NETWORK, RATE = "hybrid", 16_000


def serve(
    denoise: Model = None,
    spot: Model = None,
    transcribe: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    token: Annotated[str | None, typer.Option(envvar="CENTAURUS_TOKEN", help="Token that clients must send.")] = None,
    streams: Annotated[
        int | None, typer.Option(min=1, help="At most this many streams.", show_default="as measured for one core")
    ] = None,
    origin: Annotated[
        list[str] | None, typer.Option(help="A web origin whose pages may connect without a token.")
    ] = None,
    drain: Annotated[float, typer.Option(min=0.1, help="Seconds for open streams to finish after SIGTERM.")] = 30.0,
) -> None:
    """Serve models to live streams over WebSocket.

    Streams are ws://HOST:PORT/v1/denoise, /v1/spot and /v1/transcribe; /health and /metrics are HTTP. With no model
    named, the three that ship are served; otherwise only those named.
    """
    from centaurus.serve.server import MODELS, Options, Server

    named = {"denoise": denoise, "spot": spot, "transcribe": transcribe}
    models = {task: model for task, model in named.items() if model} or MODELS
    options = Options(host, port, token, streams, drain=drain, origins=origin or (), models=models)

    async def run() -> None:
        server = Server(options)
        try:
            await server.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise ValueError(f"port {port} is in use: choose another with --port, or 0 for any that is free") from error
        served = ", ".join(f"{task} ({server.capacity(task)} streams)" for task in models)
        output.show_sentence(f"serving {served} on ws://{host}:{server.port}")
        await server.wait()

    asyncio.run(run())


def studio(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8008,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    site: Annotated[str, typer.Option(help="Write the static site to this new folder, for any web host.")] = "",
) -> None:
    """Try the models in a browser; audio does not leave it.

    Denoise, find words, explore plans and networks.
    """
    from centaurus.studio import serve as serve_site
    from centaurus.studio import write_site

    if site:
        written = write_site(site)
        total = sum(path.stat().st_size for path in written)
        output.show(f"{len(written)} files, {output.size(total)}, in {site}")
        return

    def ready(url: str) -> None:
        output.show_line(f"The studio is at {url} (Ctrl+C ends it)")
        if browser:
            webbrowser.open(url)

    try:
        serve_site(port, ready)
    except KeyboardInterrupt:
        output.note("stopped")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path("out/demo"),
    denoiser: Annotated[str, typer.Option(help="An .onnx file or a shipped model.")] = "denoise-16k",
    spotter: Annotated[str, typer.Option(help="An .onnx file or a shipped model.")] = "kws-30",
    recogniser: Annotated[str, typer.Option(help="An .onnx file or a shipped model.")] = "commands",
    json: output.Json = False,
) -> None:
    """Denoise a noisy clip and find its words.

    With torch installed, plan a layer and stream a network as well.
    """
    results: dict[str, Any] = {"denoise": _denoise(denoiser, out, json)}
    clips = _clips(out if results["denoise"] else None)
    results["spot"] = _spot(spotter, clips, json)
    results["transcribe"] = _transcribe(recogniser, clips, json)
    if find_spec("torch") is not None:
        results |= _plan_and_stream(json)
    if json:
        output.show_json(results)


def _asset(name: str) -> Path:
    return Path(str(files("centaurus") / "assets" / name))


def _words() -> dict[str, Any]:
    description: dict[str, Any] = coder.loads(_asset("demo.json").read_bytes())
    return description


def _there(model: str, what: str, quiet: bool) -> bool:
    """Return whether a model is installed, and print it if it is not."""
    from centaurus.runtime.modelfile import shipped_models

    if model in shipped_models() or Path(model).is_file():
        return True
    if not quiet:
        output.show(f"The model {model} is not part of this installation: nothing is {what}.\n")
    return False


def _denoise(model: str, out: Path, quiet: bool) -> dict[str, Any] | None:
    if not _there(model, "denoised", quiet):
        return None
    from centaurus.audio import read, si_sdr, write
    from centaurus.runtime import Denoiser
    from centaurus.runtime.io import make_folder
    from centaurus.system import install_command

    noisy, clean = read(_asset("demo.flac")), read(_asset("demo.clean.flac"))
    job = Denoiser(model, noisy.rate)
    cleaned = _in_pieces(job, noisy.samples, noisy.rate)
    make_folder(out)
    for name, x in (("noisy", noisy.samples), ("denoised", cleaned)):
        write(out / f"{name}.wav", x, noisy.rate, overwrite=True)
    scores = {name: si_sdr(x[0], clean.samples[0]) for name, x in (("noisy", noisy.samples), ("denoised", cleaned))}
    picture = _picture(out)
    drawn = picture or f"not drawn: {install_command('plot')}"
    if not quiet:
        output.show(
            f"A clip of {noisy.seconds:.1f} s, synthesised speech in synthetic noise:\n\n"
            f"  SI-SDR noisy     {scores['noisy']:6.2f} dB   {out / 'noisy.wav'}\n"
            f"  SI-SDR denoised  {scores['denoised']:6.2f} dB   {out / 'denoised.wav'}\n"
            f"  spectrograms                 {drawn}\n\n"
            f"Denoised in pieces of 10 ms, like a live stream, with {1000 * job.latency:g} ms of latency.\n"
        )
    files_written = {"noisy": out / "noisy.wav", "denoised": out / "denoised.wav", "picture": picture}
    named = {name: path and str(path) for name, path in files_written.items()}
    return {"si_sdr": scores, "audio_seconds": noisy.seconds, "latency_seconds": job.latency, "files": named}


def _in_pieces(job: Any, x: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """Process a signal in pieces of 10 ms, like a live stream."""
    import numpy as np

    step = rate // 100
    pieces = [job.process(x[:, k : k + step]) for k in range(0, x.shape[1], step)]
    return np.concatenate([*pieces, job.flush()], axis=1)


def _picture(out: Path) -> Path | None:
    if find_spec("matplotlib") is None:
        return None
    from centaurus.runtime.denoise import before_and_after

    before_and_after(out / "noisy.wav", out / "denoised.wav", out / "spectrograms.png", overwrite=True)
    return out / "spectrograms.png"


def _clips(out: Path | None) -> dict[str, Path]:
    """Return the paths of the clean clip, the noisy one and, if it was written, the denoised one."""
    clips = {"clean": _asset("demo.clean.flac"), "noisy": _asset("demo.flac")}
    return clips if out is None else {**clips, "denoised": out / "denoised.wav"}


def _transcribe(model: str, clips: dict[str, Path], quiet: bool) -> dict[str, str] | None:
    """Return the transcript of each clip."""
    if not _there(model, "transcribed", quiet):
        return None
    from centaurus.audio import read
    from centaurus.decode import join
    from centaurus.runtime import transcribe

    texts = {}
    for name, path in clips.items():
        clip = read(path)
        texts[name] = join(transcribe(clip.samples, clip.rate, model))
    if not quiet:
        said = " ".join(word["word"] for word in _words()["words"])
        lines = "".join(f"  {name:<9} {text}\n" for name, text in {"spoken": said, **texts}.items())
        output.show(f"Transcripts of connected words:\n\n{lines}")
    return texts


def _spot(model: str, clips: dict[str, Path], quiet: bool) -> list[dict[str, Any]] | None:
    """Return the spoken words, each with its confidence in every clip."""
    if not _there(model, "spotted", quiet):
        return None
    from centaurus.audio import read
    from centaurus.runtime import spot

    spotted = {}
    for name, path in clips.items():
        clip = read(path)
        spotted[name] = spot(clip.samples, clip.rate, model)
    rows, results = [], []
    for word in _words()["words"]:
        sure = {name: _confidence(hits, word) for name, hits in spotted.items()}
        rows.append([word["word"], f"{word['start']:.1f} s", *(f"{p:.2f}" if p else "–" for p in sure.values())])
        results.append({"word": word["word"], "time": word["start"], **sure})
    hits = [str(sum(bool(result[name]) for result in results)) for name in spotted]
    wrong = [str(len(spotted[name]) - int(count)) for name, count in zip(spotted, hits, strict=True)]
    if not quiet:
        output.show("Keywords with their confidence:\n")
        output.show_table(["spoken", "at", *spotted], [*rows, ["found", "", *hits], ["other", "", *wrong]])
        output.show("")
    return results


def _confidence(keywords: list[Keyword], word: dict[str, Any]) -> float | None:
    near = [k for k in keywords if k.word == word["word"] and word["start"] <= k.time <= word["end"] + LATE]
    return max((k.confidence for k in near), default=None)


def _plan_and_stream(quiet: bool) -> dict[str, Any]:
    """Plan and train a layer for one step, then stream a denoiser piece by piece and compare with the whole."""
    import torch

    torch.manual_seed(0)
    return {"layer": _layer(quiet), "network": _network(quiet)}


def _layer(quiet: bool) -> dict[str, Any]:
    import torch

    import centaurus as ct

    layer = ct.SSM("bottleneck", in_channels=16, out_channels=32, states=256, substates=16)
    u = torch.randn(32, 16, 2048)
    plan = layer.plan(batch=32, length=2048)
    layer(u).square().mean().backward()
    if not quiet:
        output.show("A bottleneck layer, 16 to 32 channels with 256 × 16 states, at batch 32 × 2048 samples:\n")
        output.show(f"{plan}\n")
    return {"plan": plan.json()}


def _network(quiet: bool) -> dict[str, Any]:
    import torch

    import centaurus as ct

    net = ct.denoiser(NETWORK).eval()
    report = ct.count(net, rate=RATE)
    audio = torch.randn(1, 1, RATE)
    with torch.inference_mode():
        whole = net(audio)
    live = ct.Stream(net)
    pieces = [*(live(piece) for piece in audio.split(160, dim=-1)), live.flush()]
    error = float((torch.cat(pieces, -1) - whole).abs().max() / whole.abs().max())
    if not quiet:
        output.show(
            f"denoiser/{NETWORK} (not trained): {report.parameters:,} parameters, "
            f"{report.flops_per_second / 1e6:.0f} MFLOPs/s, latency {1000 * net.hop / RATE:g} ms.\n"
            f"One second in pieces of 10 ms differs from the whole signal at once by at most {error:.1e} of the peak."
        )
    return {"count": report.json(), "audio_seconds": 1.0, "relative_error": error}
