"""``Network``: a body that streams, the table it was built from, and settings saved with it; ``verify`` checks one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from centaurus.laws import measure
from centaurus.layer import Layer, State
from centaurus.models.tables import Table
from centaurus.nn.containers import Composite, Serial
from centaurus.verification import Verification

SAMPLE_RATE = 16_000


class Network(Composite):
    """A layer with a task. The table rebuilds it; ``body`` is what streams: all but heads for training only.

    ``settings`` is plain data saved with it: the sample rate, and class names, tokens or characters.
    """

    task: ClassVar[str]
    tables: ClassVar[tuple[type[Table], ...]]  # it is built from; a file's is the first that has all of its fields
    named: ClassVar[Mapping[str, Table]]

    def __init__(self, table: Table, body: Serial, settings: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.table = table
        self.body = body
        self.hop, self.ratio, self.delay = body.hop, body.ratio, body.delay
        self.settings: dict[str, Any] = {"sample_rate": SAMPLE_RATE} | dict(settings or {})
        try:
            json.dumps(self.settings)
        except TypeError as error:
            raise TypeError(f"settings are saved as JSON and should be plain data, got {self.settings!r}") from error

    def init_state(self, batch: int) -> State:
        return self.body.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return self.body.run(u, state, keep)


def verify(model: Layer, channels: int = 1, batch: int = 2, hops: int | None = None, seed: int = 0) -> Verification:
    """Check on noise that a model streams exactly: pieces equal the whole, causal, rows independent, and so on.

    ``channels`` and ``batch`` are those of the noise, ``hops`` its length. Of a network the part that streams is
    checked, without heads for training. The model is not changed. ``print`` the result for a table;
    ``holds`` is true when every law holds.
    """
    layer = model.body if isinstance(model, Network) else model
    few = hops if hops is not None else max(4, -(-100 // layer.hop))
    return Verification(tuple(measure(layer, channels, batch, few, seed)))
