"""`pytest --octavo-conformance`: the conformance suites, on every plug-in that is installed.

pytest loads this module wherever octavo is installed, so it imports nothing of ours.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--octavo-conformance",
        action="store_true",
        help="run octavo's conformance suites on the plug-ins of all installed packages",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the suites to what is collected, and leave them out otherwise."""
    if config.getoption("--octavo-conformance"):
        suites = str(Path(__file__).with_name("plugin_suites.py"))
        # Asked for alone, it runs alone: not the tests of the folder pytest stands in.
        given = config.invocation_params.args
        named = [arg for arg in given if not str(arg).startswith("-") and Path(str(arg)).exists()]
        config.args = [*config.args, suites] if named else [suites]
