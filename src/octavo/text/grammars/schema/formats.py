"""What strings of a format look like, exactly: regular expressions after the RFCs that define them.

Of names of hosts they are shown stand-ins (`hosts`).

Those whose strings no expression describes are named in `REFUSED`. All others are no formats of
JSON Schema: nothing is asserted of them, as it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from octavo.text.grammars.schema.hosts import HOSTS

REFUSED: Mapping[str, str] = {
    "idn-hostname": "international names are defined by tables, not by an expression",
    "idn-email": "international names are defined by tables, not by an expression",
    "regex": "expressions nest without end",
}
"""Formats that JSON Schema defines, and why they are not asserted."""

_HEX = "[0-9A-Fa-f]"
_DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_YEAR = (
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"  # Gregorian
)
_DATE = f"(?:[0-9]{{4}}-{_DAYS}|{_LEAP_YEAR}-02-29)"
_HOUR, _SIXTY = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"


@cache
def expressions(name: str) -> tuple[str, ...]:
    """Return expressions that a string of a format matches all of; none: nothing is asserted."""
    make = _FORMATS.get(name)
    if make is None:
        return ()
    ways = make()
    return tuple(f"^(?:{one})$" for one in ((ways,) if isinstance(ways, str) else ways))


def _time(before: str = "") -> tuple[str, ...]:
    """RFC 3339; the 61st second is there when it is 23:59 in UTC, wherever the clock stands.

    One expression has the minutes of such a time fit its offset, another the hours: all pairs of
    both would be thousands.
    """
    fraction = r"(?:\.[0-9]+)?"
    offset = f"(?:[Zz]|[+-]{_HOUR}:{_SIXTY})"
    plain = f"{_HOUR}:{_SIXTY}:{_SIXTY}{fraction}{offset}"
    minutes = [f"59:60{fraction}(?:[Zz]|[+-]{_HOUR}:00)"]
    for minute in range(1, 60):
        minutes.append(rf"{minute - 1:02}:60{fraction}\+{_HOUR}:{minute:02}")
        minutes.append(f"{59 - minute:02}:60{fraction}-{_HOUR}:{minute:02}")
    hours = [f"23:{_SIXTY}:60{fraction}[Zz]"]
    for hour in range(24):
        hours.append(rf"{(23 + hour) % 24:02}:{_SIXTY}:60{fraction}\+{hour:02}:00")
        hours.append(rf"{hour:02}:{_SIXTY}:60{fraction}\+{hour:02}:(?:0[1-9]|[1-5][0-9])")
        hours.append(f"{23 - hour:02}:{_SIXTY}:60{fraction}-{hour:02}:{_SIXTY}")
    return (
        f"{before}(?:{plain}|{_HOUR}:(?:{'|'.join(minutes)}))",
        f"{before}(?:{plain}|{'|'.join(hours)})",
    )


def _duration() -> str:
    """RFC 3339, appendix A."""
    second = "[0-9]+S"
    minute = f"[0-9]+M(?:{second})?"
    hour = f"[0-9]+H(?:{minute})?"
    time = f"T(?:{hour}|{minute}|{second})"
    day = "[0-9]+D"
    month = f"[0-9]+M(?:{day})?"
    year = f"[0-9]+Y(?:{month})?"
    return f"P(?:(?:{day}|{month}|{year})(?:{time})?|{time}|[0-9]+W)"


def _ipv6() -> str:
    """RFC 4291, 2.2: eight groups, a run of them left out once, the last two as IPv4."""
    group = f"{_HEX}{{1,4}}"
    last = f"(?:{group}:{group}|{_IPV4})"
    ways = [f"(?:{group}:){{6}}{last}", f"::(?:{group}:){{5}}{last}"]
    for before in range(1, 6):
        head = f"(?:{group}(?::{group}){{0,{before - 1}}})?"
        after = 5 - before
        ways.append(f"{head}::" + (f"(?:{group}:){{{after}}}" if after else "") + last)
    ways.append(f"(?:{group}(?::{group}){{0,5}})?::{group}")
    ways.append(f"(?:{group}(?::{group}){{0,6}})?::")
    return "|".join(ways)


def _email() -> str:
    """RFC 5321, 4.1.2: a name of words or a quoted one, at a domain or an address."""
    word = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
    quoted = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
    label = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
    address = rf"\[(?:{_IPV4}|IPv6:(?:{_ipv6()}))\]"
    return rf"(?:{word}(?:\.{word})*|{quoted})@(?:{label}(?:\.{label})*|{address})"


def _references(more: str, private: str, *, relative: bool) -> str:
    """RFC 3986 and 3987: more and private are the letters that IRIs have beyond those of URIs."""
    unreserved = rf"A-Za-z0-9._~\-{more}"
    escape = f"%{_HEX}{{2}}"
    subs = r"!$&'()*+,;="
    char = f"(?:[{unreserved}{subs}:@]|{escape})"
    segment = f"(?:/{char}*)*"
    name = f"(?:[{unreserved}{subs}]|{escape})*"
    literal = rf"\[(?:{_ipv6()}|[vV]{_HEX}+\.[A-Za-z0-9._~{subs}:-]+)\]"
    authority = f"(?:(?:[{unreserved}{subs}:]|{escape})*@)?(?:{literal}|{name})(?::[0-9]*)?"
    absolute = f"/(?:{char}+{segment})?"
    tail = (
        rf"(?:\?(?:[{unreserved}{subs}:@/?{private}]|{escape})*)?"
        f"(?:#(?:[{unreserved}{subs}:@/?]|{escape})*)?"
    )
    whole = f"[A-Za-z][A-Za-z0-9+.-]*:(?://{authority}{segment}|{absolute}|{char}+{segment}|){tail}"
    if not relative:
        return whole
    first = f"(?:[{unreserved}{subs}@]|{escape})+"
    return f"{whole}|(?://{authority}{segment}|{absolute}|{first}{segment}|){tail}"


_MORE = r"\x{a0}-\x{d7ff}\x{f900}-\x{fdcf}\x{fdf0}-\x{ffef}" + "".join(
    rf"\x{{{plane:x}0000}}-\x{{{plane:x}fffd}}" for plane in range(1, 14)
).replace(r"\x{e0000}", r"\x{e1000}")
_PRIVATE = r"\x{e000}-\x{f8ff}\x{f0000}-\x{ffffd}\x{100000}-\x{10fffd}"


def _uri_template() -> str:
    """RFC 6570, with the apostrophe that its erratum 6937 lets through."""
    letter = rf"[!#$&-;=?-\[\]_a-z~{_MORE}{_PRIVATE}]"
    char = f"(?:[A-Za-z0-9_]|%{_HEX}{{2}})"
    variable = rf"{char}(?:\.?{char})*(?::[1-9][0-9]{{0,3}}|\*)?"
    expression = rf"\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}}"
    return f"(?:{letter}|%{_HEX}{{2}}|{expression})*"


_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_FORMATS: Mapping[str, Callable[[], str | tuple[str, ...]]] = {
    "date": lambda: _DATE,
    "time": _time,
    "date-time": lambda: _time(f"{_DATE}[Tt]"),
    "duration": _duration,
    "ipv4": lambda: _IPV4,
    "ipv6": _ipv6,
    "uuid": lambda: f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "email": _email,
    "hostname": lambda: HOSTS,
    "uri": lambda: _references("", "", relative=False),
    "uri-reference": lambda: _references("", "", relative=True),
    "iri": lambda: _references(_MORE, _PRIVATE, relative=False),
    "iri-reference": lambda: _references(_MORE, _PRIVATE, relative=True),
    "uri-template": _uri_template,
    "json-pointer": lambda: _POINTER,
    "relative-json-pointer": lambda: f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
