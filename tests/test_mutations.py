"""The mutations of ``scripts/mutations.py`` apply to the sources as they are, and their tests exist."""

from __future__ import annotations

import pytest

from scripts.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_applies(mutation: Mutation) -> None:
    assert (ROOT / "src" / "centaurus" / mutation.file).read_text(encoding="utf-8").count(mutation.before) == 1
    assert mutation.before != mutation.after
    file, _, name = mutation.test.partition("::")
    tests = (ROOT / file).read_text(encoding="utf-8")
    assert f"def {name.partition('[')[0] or 'test_'}" in tests
