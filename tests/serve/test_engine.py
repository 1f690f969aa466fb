"""Streams that share an engine: scheduling and priorities."""

from __future__ import annotations

import asyncio

import numpy as np

from centaurus.runtime import Session
from centaurus.serve.engine import AHEAD, Engine, Lane, Metrics, Pace
from tests.runtime.models import exported


def test_a_stream_that_runs_ahead_waits_for_those_that_do_not() -> None:
    steps: list[str] = []

    async def run() -> None:
        engine = Engine("denoise", Session(exported("denoiser"), batch=4), Metrics())
        engine.rows_per_step = 1
        chunk, rate = engine.session.settings.chunk, engine.session.settings.rate
        greedy = engine.join(1, lambda: steps.append("greedy"))
        modest = engine.join(1, lambda: steps.append("modest"))
        greedy.process(np.zeros((1, 3 * round(AHEAD * rate)), np.float32))
        while not any(lane is greedy for lane in engine._later):  # its credit is used up
            await asyncio.sleep(0)
        steps.clear()
        modest.process(np.zeros((1, 4 * chunk), np.float32))
        await wait_for(modest)
        assert steps[:4] == ["modest"] * 4
        await wait_for(greedy)  # it is not forgotten

    asyncio.run(run())
    assert "greedy" in steps


async def wait_for(lane: Lane) -> None:
    while lane.chunks:
        await asyncio.sleep(0)


def test_a_lane_that_leaves_frees_its_rows_with_chunks_waiting() -> None:
    async def run() -> None:
        engine = Engine("denoise", Session(exported("denoiser"), batch=2), Metrics())
        lane = engine.join(2, lambda: None)
        lane.process(np.zeros((2, 5 * engine.session.settings.chunk), np.float32))
        lane.close()
        await asyncio.sleep(0)
        again = engine.join(2, lambda: None)
        assert again.process(np.zeros((2, 0), np.float32)).shape == (2, 0)

    asyncio.run(run())


def test_simultaneous_streams_share_a_step_and_a_single_one_does_not_wait() -> None:
    steps: list[int] = []

    async def run() -> None:
        engine = Engine("denoise", Session(exported("denoiser"), batch=3), Metrics(), Pace(3, 0.01))
        step = engine.session.step
        engine.session.step = lambda rows, x: (steps.append(len(rows)), step(rows, x))[1]  # type: ignore[method-assign]
        lanes = [engine.join(1, lambda: None) for _ in range(3)]
        chunk = np.zeros((1, engine.session.settings.chunk), np.float32)
        lanes[0].process(chunk)
        await asyncio.sleep(0)
        assert steps == [1], "a single stream does not wait for others"
        lanes[0].process(chunk)
        lanes[1].process(chunk)
        await asyncio.sleep(0)
        assert steps == [1, 2]
        lanes[0].process(chunk)
        await asyncio.sleep(0)
        assert steps == [1, 2], "it waits for others, as there were some before"
        lanes[1].process(chunk)
        lanes[2].process(chunk)
        await asyncio.sleep(0)
        assert steps == [1, 2, 3], "nothing is left to wait for"
        lanes[0].process(chunk)
        await asyncio.sleep(0.1)
        assert steps == [1, 2, 3, 1], "it waits for a while only"

    asyncio.run(run())
