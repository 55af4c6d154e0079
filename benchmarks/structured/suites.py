"""Whether answers held to a JSON Schema are exactly its valid values: published suites, by feature.

Every schema is given to llguidance as it stands, and to octavo. What is accepted is asked about
each instance that comes with it: a valid one must be allowed, an invalid one must not. A value
counts, not its spelling: an instance is spelled as an answer would be, its keys in the order of the
schema and whole numbers without a point; an invalid one also as the suite has it.

    python benchmarks/structured/suites.py --json > docs/performance/records/structured.json
    python benchmarks/structured/suites.py --read docs/performance/records/structured.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import llguidance
from spelling import spelled

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.testing.grammar_suite import byte_tokens
from octavo.text.grammars.byte_vocabulary import END
from octavo.text.grammars.llguidance import LlguidanceMaker
from octavo.text.grammars.schema.document import Document

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "structured"
"""Beside the repository; another place: --data."""
SUITES = {
    "JSON-Schema-Test-Suite, 2020-12": (
        "json_schema_test_suite_draft2020-12.jsonl.gz",
        "https://json-schema.org/draft/2020-12/schema",
    ),
    "JSON-Schema-Test-Suite, draft 7": (
        "json_schema_test_suite_draft7.jsonl.gz",
        "http://json-schema.org/draft-07/schema#",
    ),
    "maskbench": ("maskbench_sample.jsonl.gz", ""),
}
NOT_ASKED = {
    "draft2020-12/format.json": "format",
    "draft7/optional/content.json": "contentMediaType",
}
"""What schemas of a file with a keyword want is left open by their draft.

The first wants formats to assert nothing, where `optional/format` of the same suite wants them to;
the second wants media types to be asserted, which later drafts take back.
"""
PARTS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@dataclass
class Row:
    """What one schema came to."""

    id: str
    features: list[str]
    theirs: bool
    """llguidance accepts it as it stands."""
    ours: bool
    refusal: str = ""
    seconds: float = 0.0
    valid: int = 0
    invalid: int = 0
    forbidden: list[str] = field(default_factory=list)
    """Valid instances that we do not allow."""
    allowed: list[str] = field(default_factory=list)
    """Invalid instances that we allow."""
    respelled: int = 0
    """Valid ones that are allowed, but not as the suite spells them."""
    their_valid: int = 0
    their_invalid: int = 0
    their_forbidden: int = 0
    their_allowed: int = 0


class Judge:
    """Asks both about schemas and instances, over a vocabulary of bytes."""

    def __init__(self) -> None:
        self._vocabulary = byte_tokens()
        self._maker = LlguidanceMaker(self._vocabulary)
        self._tokenizer = llguidance.LLTokenizer(
            self._vocabulary.definition, n_vocab=self._vocabulary.size, eos_token=[END]
        )

    def row(self, given: dict, draft: str) -> Row:
        """Return what a row of a suite comes to."""
        schema = given["schema"]
        text = json.dumps(schema)
        theirs = llguidance.LLMatcher(
            self._tokenizer, llguidance.LLMatcher.grammar_from_json_schema(text), log_level=0
        )
        if draft and isinstance(schema, dict) and "$schema" not in schema:
            text = json.dumps({"$schema": draft, **schema})
        name = given.get("file") or given["id"]
        row = Row(name, sorted(features(schema)), not theirs.is_error(), ours=True)
        begin = time.perf_counter()
        try:
            ours = self._maker.compile(StructuredOutputs(json=text))
        except RequestError as error:
            row.ours, row.refusal = False, str(error)
        row.seconds = time.perf_counter() - begin
        open_ = NOT_ASKED.get(name, "-")
        asked = not any(feature.startswith(open_) for feature in row.features)
        for test in given["tests"] if asked else ():
            as_given = json.dumps(test["data"], ensure_ascii=False)
            if row.theirs:
                fits = self._takes(theirs, as_given)
                row.their_valid += test["valid"]
                row.their_invalid += not test["valid"]
                row.their_forbidden += test["valid"] and not fits
                row.their_allowed += fits and not test["valid"]
            if row.ours:
                self._ask(row, ours, test, text, as_given)
        return row

    def _ask(self, row: Row, ours, test: dict, text: str, as_given: str) -> None:
        document = Document(text)
        canonical = spelled(test["data"], document, [document.root])
        fits, as_it_is = (self._allows(ours, one) for one in (canonical, as_given))
        if test["valid"]:
            row.valid += 1
            row.respelled += fits and not as_it_is
            if not fits:
                row.forbidden.append(canonical[:80])
        else:
            row.invalid += 1
            if fits or as_it_is:
                row.allowed.append(canonical[:80])

    def _takes(self, matcher, text: str) -> bool:
        tokens = [*text.encode("utf-8", "surrogatepass"), END]
        return matcher.deep_copy().validate_tokens(tokens) == len(tokens)

    def _allows(self, grammar, text: str) -> bool:
        try:
            grammar.start().consume([*text.encode("utf-8", "surrogatepass"), END])
        except RequestError:
            return False
        return True


def features(schema: object) -> set[str]:
    """Return the keywords of a schema and all below it; formats by their names."""
    if isinstance(schema, list):
        return set().union(*map(features, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    found = set()
    for keyword, value in schema.items():
        if keyword in ("const", "enum", "default", "examples"):
            found.add(keyword)
        elif keyword == "format" and isinstance(value, str):
            found.add(f"format: {value}")
        elif keyword in PARTS and isinstance(value, dict):
            found.add(keyword)
            found |= features(list(value.values()))
        elif keyword in KEYWORDS:
            found.add(keyword)
            found |= features(value)
    return found


KEYWORDS = frozenset({
    "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentEncoding",
    "contentMediaType", "dependencies", "dependentRequired", "else", "exclusiveMaximum",
    "exclusiveMinimum", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties",
    "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf",
    "not", "oneOf", "pattern", "prefixItems", "propertyNames", "required", "then", "type",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems", "$ref", "$dynamicRef",
    "$anchor",
})  # fmt: skip
DEFINED_FORMATS = frozenset({
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4",
    "ipv6", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time",
    "uri", "uri-reference", "uri-template", "uuid",
})  # fmt: skip


def judged(suite: str, every: int = 1, data: Path = DATA) -> list[Row]:
    """Return the rows of a suite, or every so many of them."""
    file, draft = SUITES[suite]
    with gzip.open(data / file, "rt", encoding="utf-8") as lines:
        given = [json.loads(line) for line in lines]
    judge = Judge()
    return [judge.row(one, draft) for one in given[::every]]


def totals(rows: list[Row]) -> dict[str, object]:
    """Return the counts of some rows."""
    return {
        "schemas": len(rows),
        "llguidance_accepts": sum(row.theirs for row in rows),
        "octavo_accepts": sum(row.ours for row in rows),
        "llguidance_forbids_valid": sum(row.their_forbidden for row in rows),
        "llguidance_allows_invalid": sum(row.their_allowed for row in rows),
        "octavo_valid": sum(row.valid for row in rows),
        "octavo_forbids_valid": sum(len(row.forbidden) for row in rows),
        "octavo_invalid": sum(row.invalid for row in rows),
        "octavo_allows_invalid": sum(len(row.allowed) for row in rows),
        "octavo_valid_spelled_otherwise": sum(row.respelled for row in rows),
    }


def document_of(suites: dict[str, list[Row]]) -> dict[str, object]:
    """Return all that is told of a run."""
    told = []
    for name, rows in suites.items():
        found = sorted({feature for row in rows for feature in row.features})
        times = sorted(row.seconds for row in rows)
        words = Counter(row.refusal.split(": ")[3] for row in rows if row.refusal.count(": ") > 3)
        told.append(
            {
                "name": name,
                "all": totals(rows),
                "features": {
                    one: totals([row for row in rows if one in row.features]) for one in found
                },
                "refused_for": dict(words.most_common()),
                "forbidden": [[row.id, *row.forbidden] for row in rows if row.forbidden],
                "allowed": [[row.id, *row.allowed] for row in rows if row.allowed],
                "lost": [
                    [row.id, row.refusal[:160]] for row in rows if row.theirs and not row.ours
                ],
                "compile_ms": {
                    "median": 1e3 * times[len(times) // 2],
                    "p99": 1e3 * times[len(times) * 99 // 100],
                    "worst": 1e3 * times[-1],
                },
            }
        )
    return {
        "schema": "octavo.structured/1",
        "llguidance": llguidance.__version__ if hasattr(llguidance, "__version__") else "1.9",
        "load": os.getloadavg()[0],
        "not_asked": NOT_ASKED,
        "suites": told,
    }


def markdown(document: dict) -> str:
    """Return the tables of a run."""
    head = [
        "schemas", "accepted by llguidance", "by octavo", "llguidance: valid forbidden",
        "invalid allowed", "octavo: valid forbidden", "invalid allowed",
    ]  # fmt: skip
    names = (
        "schemas", "llguidance_accepts", "octavo_accepts", "llguidance_forbids_valid",
        "llguidance_allows_invalid", "octavo_forbids_valid", "octavo_allows_invalid",
    )  # fmt: skip
    lines = [f"| suite | {' | '.join(head)} |", f"|---|{'--:|' * len(head)}"]
    for suite in document["suites"]:
        cells = " | ".join(f"{suite['all'][name]:,}" for name in names)
        lines.append(f"| {suite['name']} | {cells} |")
    merged: dict[str, Counter] = {}
    for suite in document["suites"]:
        for feature, counts in suite["features"].items():
            merged.setdefault(feature, Counter()).update(counts)
    lines += ["", f"| feature | {' | '.join(head)} |", f"|---|{'--:|' * len(head)}"]
    for feature, counts in sorted(merged.items()):
        known = feature.removeprefix("format: ")
        if feature.startswith("format: ") and known not in DEFINED_FORMATS:
            continue
        cells = " | ".join(f"{counts[name]:,}" for name in names)
        lines.append(f"| `{feature}` | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="ask about every so many schemas")
    parser.add_argument("--data", type=Path, default=DATA, help="where the suites lie")
    parser.add_argument("--json", action="store_true", help="print the record of the run")
    parser.add_argument("--read", type=Path, help="print the tables of a record")
    options = parser.parse_args()
    if options.read:
        document = json.loads(options.read.read_text())
    else:
        document = document_of({name: judged(name, options.every, options.data) for name in SUITES})
    text = json.dumps(document, indent=1) if options.json else markdown(document)
    sys.stdout.write(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
