"""Measure alternatives in one process: time in alternating rounds, and peak memory in a separate pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import host
import torch
from torch.profiler import ProfilerActivity, profile

Run = Callable[[], object]


def alternate(runs: dict[str, Run], rounds: int = 5, warm: int = 1, budget: float = 20.0) -> dict[str, float]:
    """Return the seconds of each run: the median of rounds in which the alternatives take turns.

    On one thread they are CPU seconds of the fastest round: other work on the machine only adds to them.
    """
    alone = torch.get_num_threads() == 1 and torch.get_default_device().type == "cpu"
    clock = time.process_time if alone else time.perf_counter
    for _ in range(warm):
        for run in runs.values():
            run()
    wait()
    times: dict[str, list[float]] = {name: [] for name in runs}
    begin = time.perf_counter()
    for turn in range(rounds):
        if turn >= 2 and time.perf_counter() - begin > budget:
            break
        for name, run in runs.items():
            start = clock()
            run()
            wait()
            times[name].append(clock() - start)
    return {name: (min if alone else statistics.median)(values) for name, values in times.items()}


def wait() -> None:
    """Wait until a GPU has finished."""
    if torch.get_default_device().type == "cuda":
        torch.cuda.synchronize()


def peak_bytes(run: Run) -> int:
    """Return the peak of bytes allocated during a run, beyond those allocated before it."""
    run()
    if torch.get_default_device().type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return int(torch.cuda.max_memory_allocated() - before)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    events = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    live = worst = 0
    for event in events:
        live += event.nbytes()
        worst = max(worst, live)
    return worst


def machine() -> dict[str, object]:
    """Return what the figures were measured on: torch, threads, device and the machine's limits."""
    device = torch.get_default_device()
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    about = {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": name, "waiting": host.THREADS}
    return about | host.best_limits()
