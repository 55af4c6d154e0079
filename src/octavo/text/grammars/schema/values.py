"""Numbers and strings as schemas of few words."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm

from octavo.text.grammars.schema.document import Json, Refusal, quoted
from octavo.text.grammars.schema.patterns import ANY, none_of, one_of
from octavo.text.grammars.schema.shapes import Numbers, Strings

MAX_EXACT = 2**53
"""Whole numbers up to here are the same for everyone who reads JSON."""
MAX_DIGITS = 15
"""Before and behind the point, of other numbers: what a double holds."""
MAX_STEP = 10_000
"""Of multipleOf, without its point: the remainder is followed digit by digit."""
MAX_EXCLUDED = 200
"""Letters of a string that is forbidden."""


def exactly(number: Decimal) -> int | float:
    """Return a number as JSON has it. Raises RequestError for one that would be rounded."""
    whole = number.to_integral_value()
    if number == whole:
        if abs(whole) <= MAX_EXACT:
            return int(whole)
    elif abs(number) < 10**MAX_DIGITS and Decimal(repr(float(number))) == number:
        exponent = number.normalize().as_tuple().exponent
        if isinstance(exponent, int) and exponent >= -MAX_DIGITS:
            return float(number)
    raise Refusal(
        "", "number", f"{number:.20g} has more digits than are written exactly; use a string"
    ).error()


def only(number: Decimal) -> dict[str, Json]:
    """Return one number. Raises RequestError for one that would be rounded."""
    if abs(number) > MAX_EXACT and _is_limit(number):
        return {"type": "integer", "minimum": int(number), "maximum": int(number)}
    return {"enum": [exactly(number)]}


def _limit(number: Decimal, numbers: Numbers) -> int | float:
    return int(number) if numbers.integer and _is_limit(number) else exactly(number)


def _is_limit(number: Decimal) -> bool:
    """True for a whole number that libraries compare with exactly: they read a double."""
    return abs(number) < 2**63 and number == int(float(number)) and number == int(number)


def interval(numbers: Numbers) -> dict[str, Json]:
    """Return an interval of more than one number."""
    schema: dict[str, Json] = {"type": "integer" if numbers.integer else "number"}
    low, high = numbers.low, numbers.high
    if low is not None:
        schema["exclusiveMinimum" if numbers.low_open else "minimum"] = _limit(low, numbers)
    if high is not None:
        schema["exclusiveMaximum" if numbers.high_open else "maximum"] = _limit(high, numbers)
    step = common_step(numbers)
    if step is not None and not (numbers.integer and step == 1):
        if step.numerator > MAX_STEP or Fraction(str(float(step))) != step:
            raise Refusal(
                "", "`multipleOf`", f"steps of {float(step):g} are too wide or too fine"
            ).error()
        schema["multipleOf"] = int(step) if step.denominator == 1 else float(step)
    return schema


def common_step(numbers: Numbers) -> Fraction | None:
    """Return the least step that all numbers are multiples of; None: any number."""
    steps = [Fraction(step) for step in numbers.multiples]
    if numbers.integer and steps:
        steps.append(Fraction(1))
    if not steps:
        return None
    step = steps[0]
    for other in steps[1:]:
        step = Fraction(
            lcm(step.numerator, other.numerator), gcd(step.denominator, other.denominator)
        )
    return step


def some_number(numbers: Numbers) -> bool:
    """True unless an interval holds no number of its kind."""
    if numbers.low is None or numbers.high is None:
        return True
    step = common_step(numbers) or (Fraction(1) if numbers.integer else None)
    if step is None:
        return True
    low, high = Fraction(numbers.low), Fraction(numbers.high)
    first = -(-low // step) * step
    if first == low and numbers.low_open:
        first += step
    return first < high or (first == high and not numbers.high_open)


def string(strings: Strings) -> dict[str, Json]:
    """Return strings by length and patterns."""
    schema: dict[str, Json] = {"type": "string"}
    if strings.low:
        schema["minLength"] = strings.low
    if strings.high is not None:
        schema["maxLength"] = strings.high
    patterns = list(strings.patterns)
    if strings.excluded:
        patterns.append(_unlike(strings.excluded))
    if patterns:
        schema["pattern"] = patterns[0]
    if len(patterns) > 1:
        schema["allOf"] = [{"pattern": pattern} for pattern in patterns[1:]]
    return schema


def single_pattern(strings: Strings) -> str | None:
    """Return strings as one expression; None where they need several."""
    if strings.values is not None:
        return one_of(strings.values)
    ways = list(strings.patterns)
    if strings.excluded:
        ways.append(_unlike(strings.excluded))
    if strings.low or strings.high is not None:
        ways.append(f"^{ANY}{{{strings.low},{'' if strings.high is None else strings.high}}}$")
    return ways[0] if len(ways) == 1 else None


def _unlike(texts: tuple[str, ...]) -> str:
    if sum(map(len, texts)) > MAX_EXCLUDED * 10 or max(map(len, texts)) > MAX_EXCLUDED:
        raise Refusal(
            "", "`not`", f"strings of more than {MAX_EXCLUDED} letters are not excluded"
        ).error()
    if any(letter in text for text in texts for letter in '"\\'):
        why = "strings with a quote or a backslash are not excluded"
        raise Refusal("", "`not`", why, quoted(list(texts))).error()
    return none_of(texts)
