"""Every chosen mutant applies to the source as it is."""

import pytest
from tools.mutants import MUTANTS, Mutant
from tools.mutate import ROOT, apply_mutant

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.path} {mutant.query}")
def test_a_mutant_changes_the_source(mutant: Mutant) -> None:
    text = (ROOT / "src" / "pabal" / mutant.path).read_text("utf-8")

    assert apply_mutant(mutant, text) != text
    assert all((ROOT / path).exists() for path in mutant.tests)
