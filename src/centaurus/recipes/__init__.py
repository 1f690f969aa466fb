"""The paper's three recipes: each a configuration with its numbers, a small version, and how a folder is read."""

from centaurus.recipes import asr, denoise, kws
from centaurus.recipes.recipe import Prepared, Recipe

RECIPES: dict[str, Recipe] = {"kws": kws.RECIPE, "denoise": denoise.RECIPE, "asr": asr.RECIPE}

__all__ = ["RECIPES", "Prepared", "Recipe"]
