"""What published suites call valid is allowed, and nothing else: a sample; if slow, all of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "structured"
LOST = ("has more digits",)
"""What llguidance accepts and does not get right, and we refuse."""


@pytest.fixture(scope="module")
def suites():
    if not DATA.is_dir():
        pytest.skip("the suites are not in ../shared/data/structured")
    sys.path.insert(0, str(ROOT / "benchmarks" / "structured"))
    try:
        import suites

        yield suites
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("JSON-Schema-Test-Suite, 2020-12", 5),
        ("JSON-Schema-Test-Suite, draft 7", 5),
        ("maskbench", 60),
        *(
            pytest.param(name, 1, marks=pytest.mark.slow)
            for name in (
                "JSON-Schema-Test-Suite, 2020-12",
                "JSON-Schema-Test-Suite, draft 7",
                "maskbench",
            )
        ),
    ],
)
def test_every_valid_instance_is_allowed_and_no_other(suites, name, every):
    rows = suites.judged(name, every, DATA)

    assert [(row.id, row.forbidden) for row in rows if row.forbidden] == []
    assert [(row.id, row.allowed) for row in rows if row.allowed] == []
    assert sum(row.ours for row in rows) >= sum(row.theirs for row in rows)
    lost = [row.refusal for row in rows if row.theirs and not row.ours]
    assert [one for one in lost if not any(known in one for known in LOST)] == []
    assert all(row.refusal.startswith("structured_outputs: json: ") for row in rows if not row.ours)
