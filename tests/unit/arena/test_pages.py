"""What the pages on scenarios and verdicts name is there; their code is run as that of all pages."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from ares_celery.arena import actions, probes
from ares_celery.arena.shapes import AresExtension, ExtrasShape, PolicyShape
from ares_celery.arena.verdict.invariants import check_invariants
from ares_celery.arena.verdict.journal import RunStatus
from ares_celery.arena.verdict.verdict import FaultEffect, Verdict

HOWTO = Path(__file__).parents[3] / "docs" / "howto"


def section(page: str, title: str) -> str:
    """The text below a heading."""
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", (HOWTO / page).read_text())
    assert found, title
    return re.sub(r"(?s)```.*?```", "", found[1])


def named_first(text: str) -> set[str]:
    """Names in the first cells of tables."""
    return {name for cell in re.findall(r"(?m)^\| (`.*?) \|", text) for name in re.findall(r"`([\w]+)`", cell)}


def test_every_action_and_probe_is_told_of() -> None:
    """Those that are about an agent in a table, which names none that is not there; the others below it."""
    text = section("write-a-scenario.md", "What can be done and asked")
    told = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", text))
    assert named_first(text) <= set(actions.__all__)
    assert {*actions.__all__, *probes.__all__} - told == set()


@pytest.mark.parametrize("number", [0, 1])
def test_fields_of_the_extension_are_those_of_the_file(number: int) -> None:
    """`config` and `activities`, each with all that it has."""
    tables = section("write-a-scenario.md", "What only we know").split("| in `activities`")
    shape = (PolicyShape, ExtrasShape)[number]
    assert named_first(tables[number]) - {"config"} == set(shape.model_fields)
    assert {"config", "activities", "agents"} <= set(AresExtension.model_fields)


def test_chaos_toolkit_takes_every_experiment_of_a_page() -> None:
    """It demands a description, which we do not."""
    blocks = [
        block
        for page in HOWTO.glob("*.md")
        for block in re.findall(r"(?ms)^title: .*?(?=^```|^\"\"\")", page.read_text())
    ]
    assert len(blocks) >= 3
    for block in blocks:
        found = yaml.safe_load(block)
        assert set(found) >= {"title", "description", "method"}, found["title"]


def test_the_page_on_verdicts_knows_every_field_and_ending() -> None:
    """Statuses, what the events say, invariants."""
    assert named_first(section("read-a-verdict.md", "How the run ended")) - {"status"} == {
        one.value for one in RunStatus
    }
    text = section("read-a-verdict.md", "What the events say")
    known = {one.name for one in fields(Verdict)} | {one.name for one in fields(FaultEffect)} | {"mttr"}
    assert named_first(text) <= known
    assert {one.name for one in check_invariants(())} <= set(re.findall(r"`(\w+)`", text))
