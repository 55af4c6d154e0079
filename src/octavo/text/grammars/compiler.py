"""Compiles the forms of answers in a thread of its own, remembers them, and begins matchers."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue

from octavo.contract.structured import StructuredOutputs
from octavo.errors import ConfigError, OctavoError, OverLimit, RequestError
from octavo.text.grammars.after import AfterMatcher, Marker
from octavo.text.grammars.backend import Grammar, GrammarMaker, TokenMatcher, Vocabulary
from octavo.text.grammars.trial import Trial

MAX_FORMS = 256
"""Forms remembered; those that were refused are among them."""
MAX_BYTES = 64 << 20
"""What remembered forms take, by estimate."""
MAX_WAITING = 512
"""Forms that wait to be compiled."""

_STACK_BYTES = 512 << 20
"""Address space, not memory: what goes down into a form must not end the process at its depth."""
_BASE_BYTES, _BYTES_PER_CHAR = 64 << 10, 300
"""Measured: the largest schemas of real services take 30 to 300 bytes a character."""

MakerTable = Mapping[str, Callable[[Vocabulary], GrammarMaker]]


class _Form:
    """A form that is being compiled, or was: with a grammar, or with the error of its future."""

    __slots__ = ("bytes", "done", "form", "grammar", "marker")

    def __init__(self, form: StructuredOutputs) -> None:
        self.form = form
        self.done: Future[None] = Future()
        # Nobody who waits for it may take it from the others.
        self.done.set_running_or_notify_cancel()
        self.grammar: Grammar | None = None
        self.marker: Marker | None = None
        self.bytes = _BASE_BYTES + _BYTES_PER_CHAR * len(form.text)


class GrammarCompiler:
    """Implements `engine.grammars.Grammars` and `runner.masks.Matchers`; for use from any thread.

    open_vocabulary: called once, in the compiling thread, when the first form comes. makers: the
    libraries by name. backend: the name that a form's auto means. trial: where forms are tried
    before they are compiled here; None: nowhere, whoever sends them is trusted.
    """

    def __init__(
        self,
        open_vocabulary: Callable[[], Vocabulary],
        makers: MakerTable,
        *,
        backend: str = "llguidance",
        trial: Callable[[str, Vocabulary], Trial] | None = None,
    ) -> None:
        if backend not in makers:
            raise ConfigError(
                f"structured_outputs_backend {backend!r} is not one of {', '.join(makers)}"
            )
        self._open_vocabulary = open_vocabulary
        self._table = makers
        self._backend = backend
        self._try = trial
        self._closed = False
        self._begin_here()

    def begin(self, form: StructuredOutputs) -> Future[None]:
        """Begin to compile; returns at once.

        The future raises RequestError, which quotes the part that cannot be compiled. One that is
        known already is done. Raises OverLimit, changing nothing, if too many forms wait.
        """
        return self._find(form).done

    def start(self, form: StructuredOutputs) -> TokenMatcher:
        """Return a matcher at the beginning of an output; waits until the form is compiled."""
        found = self._find(form)
        found.done.result()
        assert found.grammar is not None
        if found.marker is None:
            return found.grammar.start()
        return AfterMatcher(found.marker, found.grammar.start())

    def close(self) -> None:
        """Compile nothing more; what waits gets a ConfigError. Once more: no effect."""
        self._closed = True
        if self._process == os.getpid():
            self._work.put(None)

    def _begin_here(self) -> None:
        """Start afresh; also in a process that was forked, which has no such thread."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Form] = OrderedDict()
        """Least recently asked for first."""
        self._work: SimpleQueue[_Form | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._makers: dict[str, GrammarMaker] = {}
        self._trials: dict[str, Trial] = {}
        self._vocabulary: Vocabulary | None = None

    def _find(self, form: StructuredOutputs) -> _Form:
        if self._process != os.getpid():
            self._begin_here()
        key = form.key
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
            if self._closed:
                raise ConfigError("the engine is closed: build another one")
            if self._work.qsize() >= MAX_WAITING:
                raise OverLimit(
                    f"structured_outputs: {MAX_WAITING} forms wait to be compiled already: send it "
                    "again later",
                    retry_after_s=1.0,
                    of_server=True,
                )
            found = self._known[key] = _Form(form)
            self._work.put(found)
            if self._thread is None:
                self._thread = _deep_thread(self._run)
            self._forget_oldest()
            return found

    def _forget_oldest(self) -> None:
        """Keep within the bounds; the newest form, and those not compiled yet, stay."""
        total = sum([one.bytes for one in self._known.values()])
        for key in list(self._known)[:-1]:
            if len(self._known) <= MAX_FORMS and total <= MAX_BYTES:
                return
            if self._known[key].done.done():
                total -= self._known.pop(key).bytes

    def _run(self) -> None:
        while (one := self._work.get()) is not None:
            try:
                self._compile(one)
            except OctavoError as error:
                one.done.set_exception(error)
            except BaseException as error:
                # Of whatever kind, a panic of Rust included: the next form is compiled.
                words = f"structured_outputs: {one.form.form}: it cannot be compiled: {error}"
                one.done.set_exception(RequestError(words))
            else:
                one.done.set_result(None)
        for trial in self._trials.values():
            trial.close()
        while not self._work.empty():
            left = self._work.get()
            if left is not None:
                left.done.set_exception(ConfigError("the engine is closed: build another one"))

    def _compile(self, one: _Form) -> None:
        name = self._backend if one.form.backend == "auto" else one.form.backend
        if name not in self._table:
            raise RequestError(
                f"structured_outputs: backend {name} is not one of {', '.join(self._table)}"
            )
        if self._vocabulary is None:
            self._vocabulary = self._open_vocabulary()
        if one.form.after:
            one.marker = Marker(one.form.after, self._vocabulary)
        if name not in self._makers:
            self._makers[name] = self._table[name](self._vocabulary)
            if self._try is not None:
                self._trials[name] = self._try(name, self._vocabulary)
        if self._try is not None and one.form.form != "choice":
            self._trials[name].run(one.form)
        one.grammar = self._makers[name].compile(one.form)


def _deep_thread(run: Callable[[], None]) -> threading.Thread:
    """Start a daemon with a stack for deep recursion."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="octavo-grammars", daemon=True)
        thread.start()
    finally:
        threading.stack_size(before)
    return thread
