"""The models of ``proofs/`` hold in all states of their small sizes, and each mutant breaks what its defect broke."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import prove

PAGE = (Path(__file__).parents[2] / "docs" / "proofs.md").read_text("utf-8")


@pytest.mark.parametrize("name", prove.models())
def test_model_holds_and_each_mutant_breaks_what_the_page_says_by_the_way_that_it_says(name: str) -> None:
    about = prove.models()[name]
    held, *refuted = prove.prove(name, about, size="small")

    assert held.searched.states > 1_000
    assert f"| `{name}` | {held.searched.states:,} |" in PAGE
    for mutant, proof in zip(about["mutants"], refuted, strict=True):
        # What never comes has no shortest way, and TLC shows one that it happens to meet.
        way = mutant.get("way") or ", ".join(proof.searched.trace)
        assert f"| {mutant['name']} | {mutant['defect']} | `{mutant['refuted']}` | {way} |\n" in PAGE
    for each in (*about["invariants"], *about["properties"]):
        assert f"| `{each}` |\n" in PAGE


def test_mutant_that_breaks_nothing_or_whose_line_is_gone_is_not_taken_for_refuted() -> None:
    about = prove.models()["Save"]
    mutant = {"name": "same", "line": "Nothing == <<>>", "changed": "Nothing == << >>", "refuted": "NothingIsLost"}
    with pytest.raises(prove.Unproved, match="'same' of Save should break NothingIsLost, and breaks nothing"):
        list(prove.prove("Save", about | {"mutants": [mutant]}, size="small"))

    with pytest.raises(prove.Unproved, match="the line of mutant 'same' is in the model 0 times"):
        list(prove.prove("Save", about | {"mutants": [mutant | {"line": "no such line"}]}, size="small"))


def test_search_that_does_not_end_in_its_time_is_ended_in_words(tmp_path: Path) -> None:
    (tmp_path / "Save.tla").write_text((prove.PROOFS / "Save.tla").read_text("utf-8"), "utf-8")
    (tmp_path / "Save.cfg").write_text("SPECIFICATION Spec\n", "utf-8")
    with pytest.raises(prove.Unproved, match=r"TLC has not gone through the states of Save within 0\.01 s"):
        prove.run_tlc(tmp_path, "Save", size="small", limit_s=0.01)
