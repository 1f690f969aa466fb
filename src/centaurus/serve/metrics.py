"""Counters and histograms in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

# Seconds. A hop of the shipped denoiser is 16 ms: the bounds are dense around one and two of them.
LATENCIES = (0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.048, 0.064, 0.128, 0.256, 0.512, 1.0)
ROWS = (1, 2, 4, 8, 16, 32, 64)

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number for each combination of labels. Each combination is written by one thread."""

    kind = "counter"

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.values: dict[Labels, float] = defaultdict(float)

    def add(self, amount: float = 1.0, **labels: str) -> None:
        """Increase the number of these labels."""
        self.values[tuple(sorted(labels.items()))] += amount

    def lines(self) -> Iterator[str]:
        """The samples of all labels."""
        for labels, value in sorted(self.values.items()):
            yield f"{self.name}{_braces(labels)} {value:g}"


class Gauge(Counter):
    """A number that goes up and down."""

    kind = "gauge"


class Histogram:
    """Counts of values below each of a few bounds, and their sum."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self.counts: dict[Labels, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self.sums: dict[Labels, float] = defaultdict(float)

    def observe(self, value: float, **labels: str) -> None:
        """Count a value."""
        key = tuple(sorted(labels.items()))
        self.counts[key][bisect_left(self.bounds, value)] += 1
        self.sums[key] += value

    def lines(self) -> Iterator[str]:
        """Cumulative counts, the sum and the count of all labels."""
        for labels, counts in sorted(self.counts.items()):
            total = 0
            for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                total += count
                edge = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield f"{self.name}_bucket{_braces((*labels, ('le', edge)))} {total}"
            yield f"{self.name}_sum{_braces(labels)} {self.sums[labels]:g}"
            yield f"{self.name}_count{_braces(labels)} {total}"


class Metrics:
    """The metrics of a server."""

    def __init__(self) -> None:
        self.streams = Gauge("centaurus_streams", "Streams that are open.")
        self.opened = Counter("centaurus_streams_opened_total", "Streams that were accepted.")
        self.closed = Counter("centaurus_streams_closed_total", "Streams that ended, by reason.")
        self.rejected = Counter("centaurus_streams_rejected_total", "Streams that were refused, by reason.")
        self.audio = Counter("centaurus_audio_seconds_total", "Seconds of audio received.")
        self.steps = Histogram("centaurus_step_seconds", "Time of one batched step of a network.", LATENCIES)
        self.rows = Histogram("centaurus_step_rows", "Rows that were advanced by one step.", ROWS)
        self.latency = Histogram(
            "centaurus_block_latency_seconds", "From the last sample of a block to its result.", LATENCIES
        )

    def text(self, gauges: Mapping[str, float]) -> str:
        """The whole page; ``gauges`` are further numbers of the moment, by name."""
        lines = []
        for metric in vars(self).values():
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""
