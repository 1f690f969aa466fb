"""``Stream``: run a layer piece by piece, with its state kept, saved and restored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from safetensors.torch import save as save_bytes
from torch import Tensor

from centaurus.kernels.cache import Store, held
from centaurus.layer import Layer, State, check_state, check_tensor, map_state, reset, state_tensors

KIND, VERSION = "centaurus-stream", 1


class Stream:
    """Run a model on a stream: pieces (batch, channels, time) of any length in, the frames that are complete out.

    It holds the state and the samples that do not fill a hop yet. Rows advance together in time and can be reset one
    by one. The model is put into evaluation mode and runs without gradients. Tables are computed from the parameters
    at the first piece; after ``reset()`` or ``flush()`` they are computed again.

        stream = ct.Stream(net)
        for piece in pieces:        # (1, 1, any length)
            frames = stream(piece)
        rest = stream.flush()
    """

    def __init__(self, model: Layer, batch: int = 1) -> None:
        if not isinstance(model, Layer):
            raise TypeError(
                f"Stream takes a centaurus layer, which has a state to keep, got {type(model).__name__}: "
                f"put layers into centaurus.nn.Serial instead of nn.Sequential, torch modules without memory into "
                f"centaurus.nn.Lift"
            )
        if batch < 1:
            raise ValueError(f"a stream has at least one row, got batch={batch}")
        self.model = model.eval()
        self.batch = batch
        self._channels: tuple[int, int] | None = None
        self._tables: Store = {}
        self._clear()

    def _clear(self) -> None:
        self._tables.clear()
        self._state: State | None = None
        self._rest: Tensor | None = None
        self.samples = [0] * self.batch
        self.frames = [0] * self.batch

    @torch.inference_mode()
    def __call__(self, piece: Tensor) -> Tensor:
        """Return the frames completed by this piece; samples beyond the last hop wait for the next."""
        self._check(piece)
        u = piece if self._rest is None else torch.cat([self._rest, piece], dim=-1)
        whole = u.shape[-1] // self.model.hop * self.model.hop
        self._rest = u[..., whole:].clone()
        self.samples = [n + piece.shape[-1] for n in self.samples]
        return self._advance(u[..., :whole])

    @torch.inference_mode()
    def flush(self) -> Tensor:
        """Return the frames of the waiting samples, padded with zeros as in ``forward``, and reset the stream."""
        if self._rest is None:
            raise RuntimeError("nothing to flush: this stream has not been given any piece yet")
        waiting = self._rest.shape[-1]
        padded = torch.nn.functional.pad(self._rest, (0, -waiting % self.model.hop))
        tail = self._advance(padded)[..., : self.model.frames(waiting)]
        self._clear()
        return tail

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Reset all rows, or these, to the initial state; their frame counts restart from zero."""
        if rows is None:
            self._clear()
            return
        wrong = [row for row in rows if not 0 <= row < self.batch]
        if wrong:
            raise IndexError(f"this stream has rows 0 to {self.batch - 1}, cannot reset {wrong}")
        with torch.inference_mode():
            self._state = None if self._state is None else reset(self._state, rows)
            self._rest = None if self._rest is None else state_tensors(reset(self._rest, rows))[0]
        for row in rows:
            self.samples[row] = self.frames[row] = 0

    def save(self) -> bytes:
        """Return the state of the stream as bytes that another process with the same model can restore."""
        tensors = {"samples": torch.tensor(self.samples), "frames": torch.tensor(self.frames)}
        if self._rest is not None:
            tensors["rest"] = self._rest
        if self._state is not None:
            tensors |= {f"state.{k}": x for k, x in enumerate(state_tensors(self._state))}
        return pack(tensors, {"kind": KIND, "version": str(VERSION), "hop": str(self.model.hop)})

    def restore(self, data: bytes) -> None:
        """Continue from the bytes of ``save``."""
        try:
            tensors, words = unpack(data)
        except ValueError as error:
            raise ValueError(f"the saved stream {error}") from error
        expected = {"kind": KIND, "version": str(VERSION), "hop": str(self.model.hop)}
        if words != expected:
            raise ValueError(f"the saved stream has metadata {words}, this stream needs {expected}")
        samples, frames = (self._counts(tensors, name) for name in ("samples", "frames"))
        count = sum(name.startswith("state.") for name in tensors)
        names = [f"state.{k}" for k in range(count)]
        unknown = sorted(set(tensors) - {"samples", "frames", "rest", *names})
        if unknown:
            raise ValueError(f"the saved stream has {unknown[0]!r:.60}, which no stream has")
        infinite = [name for name, x in tensors.items() if not bool(x.isfinite().all())]
        if infinite:
            raise ValueError(f"the saved stream holds NaN or infinity in {infinite[0]!r}")
        rest = tensors.get("rest")
        if rest is not None and (rest.dim() != 3 or rest.shape[0] != self.batch or rest.shape[2] >= self.model.hop):
            raise ValueError(f"the saved stream has samples of shape {tuple(rest.shape)} waiting, which do not fit")
        like = self.model.init_state(self.batch)
        self._state = _fill(like, [tensors[name] for name in names]) if names or not state_tensors(like) else None
        self._rest, self.samples, self.frames = rest, samples, frames

    def _counts(self, tensors: Mapping[str, Tensor], name: str) -> list[int]:
        """Return the samples or frames that each row of a saved stream has processed."""
        counts = tensors.get(name, torch.empty(0))
        if counts.shape != (self.batch,):
            raise ValueError(f"the saved stream has {len(counts.flatten())} rows, this one has {self.batch}")
        if counts.dtype != torch.int64 or bool((counts < 0).any()):
            raise ValueError(f"the saved stream has {name} that are not counts")
        return [int(n) for n in counts]

    def _check(self, piece: Tensor) -> None:
        check_tensor("a stream", piece)
        if piece.dim() != 3 or piece.shape[0] != self.batch:
            raise ValueError(f"this stream takes ({self.batch}, channels, time) pieces, got shape {tuple(piece.shape)}")
        if self._rest is not None and piece.shape[1] != self._rest.shape[1]:
            raise ValueError(f"this stream has had {self._rest.shape[1]} channels so far, got {piece.shape[1]}")

    def _advance(self, u: Tensor) -> Tensor:
        """Return the frames of whole hops; without any they are empty, with the output channels of the model."""
        if u.shape[-1] == 0:
            return u.new_empty(self.batch, self._outputs(u), 0)
        with held(self._tables):
            y, self._state = self.model.run(u, self._state, True)
        self.frames = [n + y.shape[-1] for n in self.frames]
        return y

    def _outputs(self, u: Tensor) -> int:
        if self._channels is None or self._channels[0] != u.shape[1]:
            silence = u.new_zeros(1, u.shape[1], self.model.hop)
            self._channels = u.shape[1], self.model.run(silence, None, False)[0].shape[1]
        return self._channels[1]


def _fill(like: State, tensors: list[Tensor]) -> State:
    """Return a state of this structure with these tensors, checked."""
    expected = len(state_tensors(like))
    if len(tensors) != expected:
        raise ValueError(f"the saved stream has {len(tensors)} state tensors, this model has {expected}")
    rest = iter(tensors)
    state = map_state(lambda x: next(rest).to(x.device), like)
    rows = tensors[0] if tensors else torch.empty(0)
    check_state(state, like, rows, "saved state")
    return state


def pack(tensors: Mapping[str, Tensor], words: Mapping[str, str]) -> bytes:
    """Return the bytes of a safetensors file, which holds data and no code, with these tensors and metadata."""
    own = {name: x.detach().to("cpu", copy=True).contiguous() for name, x in tensors.items()}
    return save_bytes(own, metadata=dict(words))


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata of such bytes."""
    try:
        tensors = load(bytes(data))
    except SafetensorError as error:
        raise ValueError(f"is not a complete safetensors file ({len(data)} bytes): {error}") from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, dict(header.get("__metadata__", {}))
