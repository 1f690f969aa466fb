"""Recipes, the paper's three and those for connected words and wake words: settings, and how a folder is read."""

from centaurus.recipes import asr, denoise, kws, wake
from centaurus.train.config import Prepared, Recipe

RECIPES: dict[str, Recipe] = {
    "kws": kws.RECIPE,
    "denoise": denoise.RECIPE,
    "asr": asr.RECIPE,
    "commands": asr.COMMANDS,
    "wake": wake.RECIPE,
}

__all__ = ["RECIPES", "Prepared", "Recipe"]
