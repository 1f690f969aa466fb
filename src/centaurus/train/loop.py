"""The order of the data and the training loop: batches, losses, optimiser steps, validations and checkpoints.

The order is a pure function of seed, epoch and index. All epochs are one endless sequence of positions; an optimiser
step takes the next ``batch`` of them, whatever the number of processes, and a resumed run starts at the position where
it stopped. The loop is the same for one process and for many under torchrun, and for every task; nothing in it is
random but the network's own dropout, whose state the checkpoints keep.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import math
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pickle import UnpicklingError
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import load
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from centaurus.data.rows import evenly_spaced
from centaurus.kernels.precision import why_no_bf16
from centaurus.models.io import save
from centaurus.models.network import Network
from centaurus.train.config import Training
from centaurus.train.objectives import Batch, Example, Objective
from centaurus.train.optim import OPTIMIZERS, Average, Budget, Muon, cosine, set_rate
from centaurus.train.run import DiskError, Logger, Run, RunError, Standing, TrainingError, Watcher

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
AVERAGE, RANDOM_STATES = "average.safetensors", "random_states_{}.pkl"  # of a checkpoint
VERSIONS = 4  # of a layer's compiled code: training and validation, full and smaller batches
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of malloc.h
NEVER = 2**31 - 1  # bytes, the largest threshold: freed memory is never given back
Figures = dict[str, float]
Terms = dict[str, torch.Tensor]
Item = dict[str, np.ndarray[Any, Any]]
Key = tuple[int, int]


class Examples(Protocol):
    """Examples to train or validate on. Whatever is random in an example comes from the generator it is given."""

    def size(self) -> int:
        """Return the number of examples in an epoch."""

    def draw(self, epoch: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Return the ``size()`` examples of this epoch, in order: a permutation, or a new selection."""

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return one example: arrays by name, ``audio`` (1, time) among them."""


class Keyed(Dataset[Item]):
    """A corpus by (epoch, index): the same key gives the same numbers in any process."""

    def __init__(self, corpus: Examples, seed: int) -> None:
        self.corpus, self.seed = corpus, seed

    def __getitem__(self, key: Key) -> Item:
        return self.corpus.example(key[1], np.random.default_rng([self.seed, 1, *key]))


class Order(Sampler[list[Key]]):
    """Batches of keys for one process from a step on, without end."""

    def __init__(self, corpus: Examples, seed: int, batch: int, rank: int = 0, ranks: int = 1, start: int = 0) -> None:
        if corpus.size() < 1:
            raise ValueError("there is nothing to train on: the corpus has no examples")
        if batch % ranks:
            raise ValueError(f"a batch of {batch} rows cannot be shared equally by {ranks} processes")
        self.share, self.rank, self.batch, self.start = batch // ranks, rank, batch, start
        self.size = corpus.size()

        @lru_cache(maxsize=2)
        def order(epoch: int) -> np.ndarray[Any, Any]:
            drawn = corpus.draw(epoch, np.random.default_rng([seed, 0, epoch]))
            if len(drawn) != self.size:
                raise ValueError(f"epoch {epoch} has {len(drawn)} examples, the first had {self.size}")
            return drawn

        self.order = order

    def __iter__(self) -> Iterator[list[Key]]:
        for step in count(self.start):
            first = step * self.batch + self.rank * self.share
            yield [self.key(position) for position in range(first, first + self.share)]

    def key(self, position: int) -> Key:
        """Return the key at a position of the endless sequence."""
        epoch, place = divmod(position, self.size)
        return epoch, int(self.order(epoch)[place])


def collate(items: Sequence[Item]) -> dict[str, torch.Tensor]:
    """Return arrays stacked by name; where their last axes differ, the shorter ones are padded with zeros."""
    return {name: torch.from_numpy(_stack([item[name] for item in items])) for name in items[0]}


def _stack(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    if arrays[0].ndim == 0 or len({a.shape for a in arrays}) == 1:
        return np.stack(arrays)
    longest = max(a.shape[-1] for a in arrays)
    stacked = np.zeros((len(arrays), *arrays[0].shape[:-1], longest), arrays[0].dtype)
    for row, a in zip(stacked, arrays, strict=True):
        row[..., : a.shape[-1]] = a
    return stacked


def batches(corpus: Examples, seed: int, order: Order, workers: int, pin: bool = False) -> DataLoader[Item]:
    """Return the endless training batches of this process."""
    return _loader(Keyed(corpus, seed), order, workers, pin)


def validation(corpus: Examples, batch: int, limit: int, rank: int, ranks: int, workers: int) -> DataLoader[Item]:
    """Return this process's share of the validation examples: one pass, the same every time."""
    keys = [(0, index) for index in evenly_spaced(corpus.size(), limit)[rank::ranks]]
    groups = [keys[k : k + batch] for k in range(0, len(keys), batch)]
    return _loader(Keyed(corpus, 0), groups, min(workers, len(groups)), False)


def _loader(dataset: Keyed, order: Order | list[list[Key]], workers: int, pin: bool) -> DataLoader[Item]:
    """Return a loader with its own generator: torch's global one belongs to dropout, which a resumed run repeats."""
    return DataLoader(
        dataset,
        batch_sampler=order,
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=4 if workers else None,
        pin_memory=pin,
        generator=torch.Generator(),
    )


class Data(NamedTuple):
    """Examples to train on, and to validate on."""

    train: Examples
    validate: Examples


def fit(objective: Objective, data: Data, config: Training, run: Run, watcher: Watcher | None = None) -> Standing:
    """Train until the budget is spent, from the newest checkpoint of the run if there is one."""
    accelerator = _accelerator(config.precision)
    if compiles(config.compile):
        allow_versions(objective)
        objective.compile()
    average = Average(objective.net, config.ema)
    average.net.to(accelerator.device)
    chosen = OPTIMIZERS[config.optimizer](objective, config.lr, config.decay)
    if isinstance(chosen, Muon):
        chosen.rounded = accelerator.mixed_precision == "bf16"
    model, optimizer = accelerator.prepare(objective, chosen)
    torch.manual_seed(config.seed + accelerator.process_index)
    checkpoints = Checkpoints(accelerator, run, average)
    standing = checkpoints.restore()
    budget = Budget(0 if config.minutes else config.total_steps(data.train.size()), config.minutes)
    done = budget.progress(standing.step, standing.seconds)
    standing = replace(standing, validations=min(standing.validations, int(done * config.validations)))  # if extended
    logger = Logger(run, watcher, standing) if accelerator.is_main_process else None
    saved = standing.seconds

    with _explained(run), _source(data.train, config, accelerator, standing.step) as source:
        tick = time.perf_counter()
        waiting: list[Terms] = []  # figures of steps that have not been read from the GPU yet
        while budget.progress(standing.step, standing.seconds) < 1:
            progress = budget.coming(standing.step, standing.seconds)
            lr = config.lr * cosine(progress, config.warmup)
            set_rate(optimizer, lr)
            waiting.append(_step(model, optimizer, source, progress, config, accelerator))
            average.update(objective.net, standing.step + 1)
            standing = replace(standing, step=standing.step + 1)
            done = budget.progress(standing.step, standing.seconds)
            due = done >= 1 or int(done * config.validations) > standing.validations
            if not due and standing.step % config.log_every and not _in_step(accelerator.device, config):
                continue

            passed, tick = time.perf_counter() - tick, time.perf_counter()
            terms, passed, audio = _agreed(accelerator, waiting, passed)
            waiting.clear()
            standing = replace(standing, seconds=standing.seconds + passed)
            if not math.isfinite(loss := terms["loss"]):
                what = f"the loss is {loss} at step {standing.step}"
                raise TrainingError(f"{what}: {last_good(run)}; a smaller lr than {config.lr:g} may help")
            done = budget.progress(standing.step, standing.seconds)
            if logger is not None:
                logger.count_audio(audio / objective.rate)
                if standing.step % config.log_every == 0 or done >= 1:
                    epoch = standing.step * config.batch / data.train.size()
                    logger.trained(standing, {"epoch": epoch, "progress": done, "lr": lr}, terms)

            if done >= 1 or int(done * config.validations) > standing.validations:
                figures, examples = _validate(objective, average.net, data.validate, config, accelerator)
                standing, best = judged(standing, figures[objective.monitor], objective.lower_is_better)
                standing = replace(standing, validations=int(done * config.validations))
                if logger is not None:
                    logger.validated(standing, figures, best)
                    logger.examples(examples, objective.rate, standing.step)
                    if best:
                        checkpoints.keep("best")
            elif standing.seconds - saved < 60 * config.save_minutes:
                continue
            checkpoints.save(model, standing)
            saved = standing.seconds
        if logger is not None:
            logger.close()
    return standing


def compiles(setting: str) -> bool:
    """Return whether to use torch.compile: as the setting says, or for auto where there is a GPU with Triton."""
    if setting == "auto":
        return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
    return setting == "true"


def allow_versions(net: nn.Module) -> None:
    """Let torch.compile keep a version of a layer's code for every layer that shares it.

    Its limit is meant for one module whose inputs keep changing. Each layer of a network has its own fixed sizes, and
    nine blocks of a kind would exceed it.
    """
    config = torch._dynamo.config
    most = VERSIONS * sum(1 for _ in net.modules())
    config.recompile_limit = max(config.recompile_limit, most)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, most)


def check_precision(precision: str) -> None:
    """Refuse bf16 on a CPU without fast bf16 products, before anything is read or written."""
    reason = why_no_bf16() if precision == "bf16" and not torch.cuda.is_available() else ""
    if reason:
        raise ValueError(f"precision=bf16 does not help on this CPU: {reason}; use precision=fp32")


def _accelerator(precision: str) -> Accelerator:
    """Return the devices and processes that torchrun gives; half precision where hardware has it, or on request."""
    check_precision(precision)
    cuda = torch.cuda.is_available()
    if precision == "auto":
        precision = "fp32" if not cuda else "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    if cuda:
        torch.set_float32_matmul_precision("high")  # TF32, but not in kernels and states: kernels/precision.py
    AcceleratorState._reset_state()  # an earlier run in this process may have set another precision
    return Accelerator(mixed_precision="no" if precision == "fp32" else precision, cpu=not cuda)


@contextmanager
def _source(corpus: Examples, config: Training, accelerator: Accelerator, step: int) -> Iterator[Iterator[Batch]]:
    """Yield this process's batches from a step on; their workers end with the context."""
    rank, ranks, part = accelerator.process_index, accelerator.num_processes, config.batch // config.accumulate
    order = Order(corpus, config.seed, part, rank, ranks, step * config.accumulate)
    pin = accelerator.device.type == "cuda"
    source = iter(batches(corpus, config.seed, order, config.workers, pin))
    try:
        yield source
    finally:
        del source


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: Iterator[Batch],
    progress: float,
    config: Training,
    accelerator: Accelerator,
) -> Terms:
    """Take one optimiser step over the parts of a batch; return the mean losses, the gradient's norm and the samples.

    Figures stay on the device: reading one would make the host wait for the step.
    """
    model.train()
    sums: Terms = {}
    samples = 0
    fraction = torch.full((), progress, device=accelerator.device)  # torch.compile would compile again for every float
    for part in range(config.accumulate):
        batch = _moved(next(source), accelerator.device)
        last = part == config.accumulate - 1
        with nullcontext() if last else accelerator.no_sync(model):
            with accelerator.autocast():
                terms = model(batch, fraction)
            accelerator.backward(terms["loss"] / config.accumulate)
        for name, value in terms.items():
            own = value.detach().double() / config.accumulate
            sums[name] = sums[name] + own if name in sums else own
        samples += batch["audio"].numel()
    norm = accelerator.clip_grad_norm_(model.parameters(), config.clip or math.inf)
    sums["norm"] = torch.as_tensor(norm, dtype=torch.float64, device=accelerator.device)
    sums["samples"] = torch.full((), float(samples), dtype=torch.float64, device=accelerator.device)
    if config.clip_value:  # not accelerate's, which would unscale half-precision gradients once more
        nn.utils.clip_grad_value_(model.parameters(), config.clip_value)
    optimizer.step()
    optimizer.zero_grad()
    return sums


def _moved(batch: Batch, device: torch.device) -> Batch:
    return {name: x.to(device, non_blocking=True) for name, x in batch.items()}


def _in_step(device: torch.device, config: Training) -> bool:
    """Return whether figures are read after every step: on a CPU, where that is free, and if minutes end the run."""
    return device.type == "cpu" or bool(config.minutes)


def _agreed(accelerator: Accelerator, steps: Sequence[Terms], passed: float) -> tuple[Figures, float, float]:
    """Return means over the processes of the last step's losses and of the time passed, and the samples of all steps.

    The loss is the last one, or an earlier one that is NaN.
    """
    last = steps[-1]
    losses = torch.stack([terms["loss"] for terms in steps])
    worst = torch.where(losses.isfinite().all(), losses[-1], losses.sum())
    samples = torch.stack([terms["samples"] for terms in steps]).sum()
    clock = torch.full((), passed, dtype=torch.float64, device=accelerator.device)
    figures = {**last, "loss": worst, "samples": samples}
    *means, passed = accelerator.reduce(torch.stack([*figures.values(), clock]), "mean").tolist()
    shared = dict(zip(figures, means, strict=True))
    return shared, passed, shared.pop("samples") * accelerator.num_processes


@torch.no_grad()
def _validate(
    objective: Objective, net: Network, corpus: Examples, config: Training, accelerator: Accelerator
) -> tuple[Figures, list[Example]]:
    """Return the figures of a validation over all processes, and examples of its first batch."""
    rank, ranks = accelerator.process_index, accelerator.num_processes
    rows = max(1, config.batch // config.accumulate // ranks)
    totals: dict[str, torch.Tensor] = {}
    examples: list[Example] = []
    for loaded in validation(corpus, rows, config.validation_items, rank, ranks, config.workers):
        batch = _moved(loaded, accelerator.device)
        for name, sums in objective.measure(net, batch).items():
            pair = torch.tensor(sums, dtype=torch.float64, device=accelerator.device)
            totals[name] = totals.get(name, torch.zeros_like(pair)) + pair
        if not examples:
            examples = objective.examples(net, batch)
    if ranks > 1:
        totals = {name: accelerator.reduce(pair, "sum") for name, pair in totals.items()}
    return {name: float(over / max(under, 1e-12)) for name, (over, under) in totals.items()}, examples


@contextmanager
def _explained(run: Run) -> Iterator[None]:
    """Re-raise the errors of a full disk and of a dead data worker, with advice."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        raise DiskError(f"the disk is full ({error}): {last_good(run)}") from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise TrainingError(
            f"a data worker died ({error}): {last_good(run)}; if memory ran out, use fewer workers or a smaller batch"
        ) from error


def last_good(run: Run) -> str:
    """Return a sentence about the checkpoint to resume from."""
    checkpoint = run.last_checkpoint()
    if checkpoint is None:
        return "no checkpoint has been written yet"
    return f"the last good checkpoint is {checkpoint} and --resume {run.folder} continues from it"


class Checkpoints:
    """Saves and restores weights, optimiser, RNG states and EMA (accelerate's format, for trusted files only)."""

    def __init__(self, accelerator: Accelerator, run: Run, average: Average) -> None:
        self.accelerator, self.run, self.average = accelerator, run, average

    def restore(self) -> Standing:
        """Restore the newest checkpoint and return its standing, or that of a run that begins."""
        checkpoint, processes = self.run.last_checkpoint(), self.accelerator.num_processes
        if checkpoint is None:
            if self.accelerator.is_main_process:
                self.run.rewind(0)
            return Standing(processes=processes)
        standing = self.run.standing(checkpoint)
        if standing.processes != processes:
            raise RunError(f"was written by {standing.processes} processes, this run has {processes}", checkpoint)
        try:
            self.accelerator.load_state(str(checkpoint))
            self.average.net.load_state_dict(load_file(checkpoint / AVERAGE))
            random = load(checkpoint / RANDOM_STATES.format(self.accelerator.process_index))["torch_manual_seed"]
        except RuntimeError as error:  # torch's message for weights of other shapes
            raise RunError(f"does not fit this network: {str(error).splitlines()[-1].strip()}", checkpoint) from error
        except (UnpicklingError, SafetensorError, EOFError, KeyError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RunError(f"cannot be restored: {reason:.300}", checkpoint) from error
        if not torch.equal(torch.get_rng_state(), random):  # accelerate would continue without them
            raise RunError("cannot be restored: its random numbers were written by other versions", checkpoint)
        if self.accelerator.is_main_process:
            self.run.rewind(standing.step)
        return standing

    def save(self, model: nn.Module, standing: Standing) -> None:
        """Write the EMA as the last model, then a checkpoint; older checkpoints are removed once this one is complete.

        The checkpoint comes last: a run that is killed in between writes both again, and one that has ended has both.
        """
        if not all(bool(x.isfinite().all()) for x in model.parameters()):
            raise TrainingError(f"weights became infinite or NaN at step {standing.step}: {last_good(self.run)}")
        main = self.accelerator.is_main_process
        try:
            if main:
                self.run.begin_checkpoint()
            self.accelerator.wait_for_everyone()
            self.accelerator.save_state(str(self.run.unfinished))
            self.accelerator.wait_for_everyone()
            if main:
                average = {name: x.contiguous() for name, x in self.average.net.state_dict().items()}
                save_file(average, self.run.unfinished / AVERAGE)
                self.keep("last")
                self.run.finish_checkpoint(standing)
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(self.run.unfinished, ignore_errors=True)
            raise DiskError(
                f"no checkpoint could be written at step {standing.step} ({error}): {last_good(self.run)}"
            ) from error
        self.accelerator.wait_for_everyone()

    def keep(self, name: str) -> None:
        """Write the EMA as a model file of this name."""
        save(self.average.net, self.run.folder / f"{name}.safetensors")


def judged(standing: Standing, value: float, lower: bool) -> tuple[Standing, bool]:
    """Return the standing after a validation, and whether it was the best so far."""
    better = standing.best is None or (value < standing.best if lower else value > standing.best)
    if better:
        standing = replace(standing, best=value)
    return replace(standing, validations=standing.validations + 1), better


def keep_memory() -> bool:
    """Tell glibc to keep freed memory instead of returning every large buffer to the system; return whether it does.

    Training asks for the same large buffers at every step, and memory from the system is zeroed page by page. Measured:
    training steps are 1.2 to 2 times as fast.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    asked = ((M_TRIM_THRESHOLD, NEVER), (M_TOP_PAD, 64 << 20), (M_MMAP_MAX, 0))
    return all(mallopt(parameter, value) == 1 for parameter, value in asked)
