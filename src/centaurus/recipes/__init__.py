"""The paper's three recipes and one for connected words: settings with their numbers, and how a folder is read."""

from centaurus.recipes import asr, commands, denoise, kws
from centaurus.recipes.recipe import Prepared, Recipe

RECIPES: dict[str, Recipe] = {
    "kws": kws.RECIPE,
    "denoise": denoise.RECIPE,
    "asr": asr.RECIPE,
    "commands": commands.RECIPE,
}

__all__ = ["RECIPES", "Prepared", "Recipe"]
