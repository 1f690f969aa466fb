"""Write and restore the checkpoints of a run: weights, optimiser, random numbers and averaged weights."""

from __future__ import annotations

import shutil
from dataclasses import replace

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from centaurus.models.io import save
from centaurus.train.optim import Average
from centaurus.train.run import DiskError, Run, RunError, Standing, TrainingError

AVERAGE = "average.safetensors"


def last_good(run: Run) -> str:
    """Where to go on from, in words."""
    found = run.last_checkpoint()
    if found is None:
        return "no checkpoint has been written yet"
    return f"the last good checkpoint is {found} and --resume {run.folder} goes on from it"


class Checkpoints:
    """Saves and restores weights, optimiser, random numbers and average (accelerate's format, from one's own runs)."""

    def __init__(self, accelerator: Accelerator, run: Run, average: Average) -> None:
        self.accelerator, self.run, self.average = accelerator, run, average

    def restore(self) -> Standing:
        """Everything as the newest checkpoint has it, or the standing of a run that begins."""
        found, processes = self.run.last_checkpoint(), self.accelerator.num_processes
        if found is None:
            if self.accelerator.is_main_process:
                self.run.rewind(0)
            return Standing(processes=processes)
        standing = self.run.standing(found)
        if standing.processes != processes:
            raise RunError(f"was written by {standing.processes} processes, this run has {processes}", found)
        try:
            self.accelerator.load_state(str(found))
            self.average.net.load_state_dict(load_file(found / AVERAGE))
        except RuntimeError as error:  # torch's words for weights of other shapes
            raise RunError(f"does not fit this network: {str(error).splitlines()[-1].strip()}", found) from error
        if self.accelerator.is_main_process:
            self.run.rewind(standing.step)
        return standing

    def save(self, model: nn.Module, standing: Standing) -> None:
        """A checkpoint, and the average as the last model; the checkpoint before goes when this one is complete."""
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
                save_file(_contiguous(self.average.net), self.run.unfinished / AVERAGE)
                self.run.finish_checkpoint(standing)
                self.keep("last")
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(self.run.unfinished, ignore_errors=True)
            raise DiskError(
                f"no checkpoint could be written at step {standing.step} ({error}): {last_good(self.run)}"
            ) from error
        self.accelerator.wait_for_everyone()

    def keep(self, name: str) -> None:
        """The average as a model file of this name."""
        save(self.average.net, self.run.folder / f"{name}.safetensors")


def _contiguous(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: x.contiguous() for name, x in net.state_dict().items()}


def judged(standing: Standing, value: float, lower: bool) -> tuple[Standing, bool]:
    """The standing after a validation, and whether it was the best so far."""
    better = standing.best is None or (value < standing.best if lower else value > standing.best)
    if better:
        standing = replace(standing, best=value)
    return replace(standing, validations=standing.validations + 1), better
