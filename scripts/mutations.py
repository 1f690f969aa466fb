"""Break the code on purpose, one change at a time, and see that a test fails for each.

    python scripts/mutations.py            every mutation
    python scripts/mutations.py ema reset  those whose name contains one of these words

Each mutation is applied to a copy of the package in a temporary folder; the working tree is never changed. The exit
code is 1 if a mutation survives or no longer applies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
UNCHANGED = ("pretrained", "studio", "assets")  # folders without Python code: linked, not copied


class Mutation(NamedTuple):
    """Replace ``before``, which occurs once in ``file``, by ``after``; ``test`` should then fail."""

    name: str
    file: str
    before: str
    after: str
    test: str


MUTATIONS = (
    Mutation(
        "session reset keeps the waiting samples",
        "runtime/session.py",
        "self._waiting, self._turn = 0, 0\n            self.samples",
        "self._turn = 0\n            self.samples",
        "tests/runtime/test_session.py::test_reset_clears_the_samples_that_wait",
    ),
    Mutation(
        "join keeps the waiting samples of the row",
        "runtime/session.py",
        "            self._audio[row] = 0\n",
        "",
        "tests/runtime/test_session.py::test_a_stream_joins_between_chunk_boundaries",
    ),
    Mutation(
        "keyed ignores the epoch",
        "train/loop.py",
        "[self.seed, 1, *key]",
        "[self.seed, 1, key[1]]",
        "tests/train/test_parts.py::test_augmentation_differs_by_epoch_and_is_the_same_in_any_process",
    ),
    Mutation(
        "denoiser flush keeps what the resampler gave too much",
        "runtime/denoise.py",
        "self._ready: Block = np.zeros((self._back.channels, 0), np.float32)",
        'self._ready: Block = getattr(self, "_ready", np.zeros((self._back.channels, 0), np.float32))',
        "tests/runtime/test_denoise.py::test_a_second_file_comes_out_as_the_first",
    ),
    Mutation(
        "cost of an FFT doubled",
        "planner/cost.py",
        "FFT_FLOPS = 2.5",
        "FFT_FLOPS = 5.0",
        "tests/planner/test_cost.py::test_flops_of_each_step",
    ),
    Mutation(
        "cost without the loop over chunks",
        "planner/cost.py",
        "forward + scan + copies",
        "forward + copies",
        "tests/planner/test_cost.py",
    ),
    Mutation(
        "cost without the adjoint loop",
        "planner/cost.py",
        "back + LOOP_BACKWARD * scan + 2 * copies",
        "back + 2 * copies",
        "tests/planner/test_cost.py",
    ),
    Mutation(
        "ERB filters not normalised",
        "train/losses.py",
        "(weight / weight.sum(1, keepdim=True)).float()",
        "weight.float()",
        "tests/train/test_losses.py::test_erb_bands_cover_the_spectrum_and_none_is_empty",
    ),
    Mutation(
        "ERB powers not normalised by the window",
        "train/losses.py",
        "constant(erb_filters, x, size, rate) * scale**2",
        "constant(erb_filters, x, size, rate)",
        "tests/train/test_losses.py::test_band_powers_are_those_of_a_full_scale_sine",
    ),
    Mutation(
        "silence threshold of SI-SDR",
        "train/losses.py",
        "SILENT = 1e-9 ",
        "SILENT = 2e-9 ",
        "tests/train/test_losses.py::test_rows_without_speech_do_not_count_in_si_sdr",
    ),
    Mutation(
        "floor of the relative losses",
        "train/losses.py",
        "RELATIVE_FLOOR = 1e-4",
        "RELATIVE_FLOOR = 1e-8",
        "tests/train/test_losses.py::test_relative_spectra_have_a_floor",
    ),
    Mutation(
        "relative losses without a floor",
        "train/losses.py",
        "floor = RELATIVE_FLOOR * size / RELATIVE_SIZES[0]",
        "floor = 0.0",
        "tests/train/test_losses.py::test_relative_spectra_have_a_floor",
    ),
    Mutation(
        "validation of a denoiser by the first weights",
        "train/objectives.py",
        "sum(w.last * self.term(",
        "sum(w.first * self.term(",
        "tests/train/test_parts.py::test_a_denoiser_is_judged_by_its_final_losses",
    ),
    Mutation(
        "Pareto front compares the peak only",
        "planner/search.py",
        "e.peak <= entry.peak and e.kept <= entry.kept",
        "e.peak <= entry.peak",
        "tests/planner/test_cost.py::test_the_front_has_the_fastest_and_under_a_limit_all_that_nothing_beats",
    ),
    Mutation(
        "Pareto front keeps dominated plans",
        "planner/search.py",
        "e.peak <= entry.peak and e.kept <= entry.kept",
        "e.peak < entry.peak and e.kept < entry.kept",
        "tests/planner/test_cost.py::test_the_front_has_the_fastest_and_under_a_limit_all_that_nothing_beats",
    ),
    Mutation(
        "tile size of the cost model",
        "planner/cost.py",
        "numbers_per_row * REAL",
        "numbers_per_row",
        "tests/planner/test_cost.py::test_tiles_hold_as_many_rows_as_fit",
    ),
    Mutation(
        "tile size of the program",
        "kernels/program.py",
        "self.plan.tile_bytes // (REAL * largest *",
        "self.plan.tile_bytes // (largest *",
        "tests/kernels/test_program.py::test_a_tile_holds_as_many_rows_as_fit_the_cache",
    ),
    Mutation(
        "fan-in of an equation of one's own",
        "ssm/topology.py",
        "            later |= set(self.modes)\n",
        "            pass\n",
        "tests/ssm/test_start.py::test_the_fan_in_of_an_equation_of_ones_own",
    ),
    Mutation(
        "residual takes the hop of its body",
        "nn/containers.py",
        "lcm(self.body.hop, self.skip.hop)",
        "self.body.hop",
        "tests/nn/test_containers.py::test_a_residual_has_a_hop_that_fits_body_and_skip",
    ),
    Mutation(
        "spotting forgets its caution",
        "decode.py",
        "softmax(logits + self._caution)",
        "softmax(logits)",
        "tests/decode/test_keywords.py::test_caution_is_added_to_the_logit_of_the_background",
    ),
    Mutation(
        "CTC marks reach back one frame more",
        "decode.py",
        "[-_frames(REACH, self.seconds) :]",
        "[-_frames(REACH, self.seconds) - 1 :]",
        "tests/decode/test_ctc.py::test_a_mark_reaches_back_only_so_far",
    ),
    Mutation(
        "EMA counts steps from zero",
        "train/loop.py",
        "average.update(objective.net, standing.step + 1)",
        "average.update(objective.net, standing.step)",
        "tests/train/test_fit.py::test_the_ema_counts_optimiser_steps_from_one",
    ),
    Mutation(
        "EMA remembers the random start",
        "train/optim.py",
        "min(self.decay, (1 + step) / (10 + step))",
        "self.decay",
        "tests/train/test_parts.py::test_the_average_follows_as_its_formula_says",
    ),
    Mutation(
        "silence threshold of the perceptual loss",
        "train/losses.py",
        "PESQ_SILENT = 1e-6 ",
        "PESQ_SILENT = 1e-5 ",
        "tests/train/test_perceptual.py::test_rows_are_silent_from_60_db_below_the_input_on",
    ),
    Mutation(
        "plans of layers at the input's rate",
        "models/network.py",
        "batch, length * part.ratio)",
        "batch, length)",
        "tests/models/test_networks.py::test_layers_are_planned_at_the_length_that_the_signal_has_there",
    ),
    Mutation(
        "plans of layers without padding to hops",
        "models/network.py",
        "Fraction(ceil(length / model.hop) * model.hop)",
        "Fraction(length)",
        "tests/models/test_networks.py::test_layers_are_planned_at_the_length_that_the_signal_has_there",
    ),
    Mutation(
        "exported model evaluated with its delay",
        "evaluation/__init__.py",
        "[..., known.frames(known.delay) :]",
        "",
        "tests/evaluation/test_evaluate.py::test_an_exported_model_runs_aligned_and_listens_anew",
    ),
    Mutation(
        "live evaluation continues the stream before",
        "evaluation/__init__.py",
        "        session.reset()\n        return session.process\n",
        "        return session.process\n",
        "tests/evaluation/test_evaluate.py::test_an_exported_model_runs_aligned_and_listens_anew",
    ),
    Mutation(
        "live evaluation without the folder of noise",
        "evaluation/__init__.py",
        "words, quiet, sounds)",
        "words, quiet, None)",
        "tests/evaluation/test_evaluate.py::test_live_evaluation_takes_words_noise_and_others_from_their_folders",
    ),
    Mutation(
        "release level of keywords",
        "decode.py",
        "return 0.8 * self.threshold if",
        "return 0.9 * self.threshold if",
        "tests/decode/test_keywords.py::test_hysteresis_between_release_and_threshold",
    ),
    Mutation(
        "server admits a stream that does not fit",
        "serve/server.py",
        "self.load + more > self.options.load",
        "self.load > self.options.load",
        "tests/serve/test_server.py::test_a_stream_is_admitted_if_it_still_fits",
    ),
    Mutation(
        "shares of epochs repeat the first cycle",
        "data/rows.py",
        "_shuffled(group.count, seed, number, int(cycle))",
        "_shuffled(group.count, seed, number, 0)",
        "tests/data/test_examples.py::test_every_epoch_and_every_cycle_of_epochs_has_its_own_order",
    ),
    Mutation(
        "groups interleaved alike in every epoch",
        "data/rows.py",
        "np.random.default_rng([seed, 1, epoch])",
        "np.random.default_rng([seed, 1, 0])",
        "tests/data/test_examples.py::test_every_epoch_and_every_cycle_of_epochs_has_its_own_order",
    ),
    Mutation(
        "SNRs grouped by the multiple below",
        "evaluation/__init__.py",
        'return 5 * round(row["snr"] / 5)',
        'return 5 * int(row["snr"] // 5)',
        "tests/evaluation/test_evaluate.py::test_an_snr_belongs_to_the_nearest_multiple_of_5_db",
    ),
)


def survives(mutation: Mutation, folder: Path) -> bool:
    """Return whether the test still passes with the mutation; raise ValueError if it does not apply."""
    package = folder / "centaurus"
    package.mkdir()
    for entry in (ROOT / "src" / "centaurus").iterdir():
        if entry.name in UNCHANGED:
            (package / entry.name).symlink_to(entry)
        elif entry.is_dir():
            shutil.copytree(entry, package / entry.name)
        else:
            shutil.copy(entry, package)
    path = package / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.before) != 1:
        raise ValueError(f"{mutation.file} has {mutation.before!r} {text.count(mutation.before)} times, not once")
    path.write_text(text.replace(mutation.before, mutation.after), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutation.test]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise ValueError(f"{mutation.test} does not run: {done.stdout[-300:]}{done.stderr[-300:]}")
    return done.returncode == 0


def main(words: list[str]) -> int:
    """Apply every mutation whose name has one of the words, or all of them; return the exit code."""
    bad = 0
    for mutation in MUTATIONS:
        if words and not any(word.lower() in mutation.name.lower() for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                verdict = "SURVIVES" if survives(mutation, Path(folder)) else "killed"
            except ValueError as error:
                verdict = f"ERROR {error}"
        bad += verdict != "killed"
        print(f"{mutation.name:<56} {verdict}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
