"""The process of an engine: python -m octavo.engine.worker ENDPOINT SCHEDULING PARENT.

It is told over the socket at ENDPOINT how to build its engine, and serves it there until it is told
to stop or the process that started it, whose id is PARENT, is gone. SCHEDULING: a word of
`CoreScheduling`.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TypeAlias

from octavo.engine.channel import SocketChannel
from octavo.engine.core import Core
from octavo.engine.loop import Loop
from octavo.engine.messages import CoreFacts, CoreSpec, Failed, Said
from octavo.engine.scheduling import CoreScheduling
from octavo.errors import EngineGone, OctavoError

Factory: TypeAlias = Callable[[bytes, Callable[[str], None]], tuple[Loop, CoreFacts]]
"""Called with settings and with what is told in words what takes long."""


def main(endpoint: str, scheduling: str, parent: str) -> int:
    """Serve one engine; returns the exit status."""
    gc.set_threshold(100_000, 50, 100)  # as in `octavo.cli.main`
    channel = SocketChannel(endpoint, int(parent))
    # After the socket's own thread has been made, before those that compute: what waits for news
    # goes ahead of them, also where they take every core.
    if scheduling == CoreScheduling.BATCH and hasattr(os, "sched_setscheduler"):
        with suppress(OSError):  # where a sandbox forbids it, it is slower, not wrong
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        return _serve(channel)
    except EngineGone:
        return 0  # nobody is left to tell
    finally:
        channel.close()


def _serve(channel: SocketChannel) -> int:
    spec = None
    while spec is None:
        if channel.abandoned:
            return 0
        spec = channel.receive(1.0)
    assert isinstance(spec, CoreSpec), f"the first command is how to build: {spec}"
    try:
        loop, facts = _factory(spec.factory)(spec.settings, lambda text: channel.send(Said(text)))
    except EngineGone:
        raise
    except Exception as error:
        trace = "" if isinstance(error, OctavoError) else traceback.format_exc()
        channel.send(Failed(type(error).__name__, str(error), trace))
        return 1
    gc.collect()
    gc.freeze()  # what is there now stays
    try:
        Core(loop, facts, channel).run()
    except EngineGone:
        raise
    except Exception as error:
        channel.send(Failed(type(error).__name__, str(error)))
        if isinstance(error, OctavoError):
            return 1
        raise
    return 0


def _factory(place: str) -> Factory:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
