"""Answers as `/v1/responses` writes them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from octavo.contract.batch import Logprobs
from octavo.server import response_events as events
from octavo.server.answers import Usage
from octavo.server.ask import Ask
from octavo.server.choice import Choice, Piece
from octavo.server.failures import ApiError
from octavo.server.outline import Outline, Part, Step
from octavo.server.schemas.responses import ResponsesBody
from octavo.text.conversation import Turn

Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]

_ENDINGS: dict[Status, type[events.Completed | events.Incomplete | events.Failed]] = {
    "completed": events.Completed,
    "incomplete": events.Incomplete,
    "failed": events.Failed,
    "cancelled": events.Failed,
}


class ResponsesForm:
    """A `Form`, and the response as it stands.

    base: fields of the response that stay as they are, its id first. behind: nobody waits for it.
    hear: told each event that is written, up to its end, however it ends. score: says as JSON has
    it how likely a token was.
    """

    def __init__(
        self,
        base: dict[str, object],
        *,
        behind: bool = False,
        hear: Callable[[bytes], None] | None = None,
        score: Callable[[int, Logprobs], object] | None = None,
    ) -> None:
        self.id = str(base["id"])
        self.status: Status = "queued" if behind else "in_progress"
        self.on_end: Callable[[], None] | None = None
        """Hears once of its end, before that has been sent, in the thread that writes it."""
        self._hear = hear
        self._base = base
        self._outline = Outline()
        self._score = score
        self._scores: dict[int, list[msgspec.Raw]] = {}
        """Of the tokens of each part that is a text."""
        self._sequence = 0
        """Number of the next event."""
        self._usage: dict[str, object] | None = None
        self._error: dict[str, object] | None = None
        self._completed_s: int | None = None
        self._cut: str | None = None
        """Why the answer is not complete."""

    @property
    def response(self) -> dict[str, Any]:
        """The response as JSON has it."""
        return {
            **self._base,
            "status": self.status,
            "completed_at": self._completed_s,
            "error": self._error,
            "incomplete_details": None if self._cut is None else {"reason": self._cut},
            "output": [self._item(part) for part in self._outline.parts],
            "usage": self._usage,
        }

    @property
    def done(self) -> bool:
        """True once it has ended."""
        return self.status not in ("queued", "in_progress")

    def turn(self) -> Turn:
        """Return the answer as a history has it."""
        return self._outline.turn()

    def whole(self, asks: list[Ask], usage: Usage) -> object:
        """Return the answer in one piece."""
        (ask,) = asks
        self._take(ask.choices[0].take())
        self._finish(usage)
        return self.response

    def open(self) -> None:
        """Tell whoever hears that it has been taken in, and waits for its turn."""
        self._tell(events.Created)
        self._tell(events.Queued)

    def chunk(self, ask: Ask, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        """Return news of the answer as events; before the first, that it has begun."""
        return (self._begin() if piece.first else b"") + self._take(piece)

    def end(self, usage: Usage | None) -> bytes:
        """Return the event that tells all of it, unless it has been heard."""
        assert usage is not None, "a response always tells its usage"
        self._finish(usage)
        return self._ending() if self._hear is None else b""

    def broken(self, error: ApiError) -> bytes:
        """Return what ends a stream that has failed, unless it has been heard."""
        unheard = not self._sequence
        self.fail(error)
        if self._hear is not None:
            return b""
        return (self._tell(events.Created) if unheard else b"") + self._ending()

    def fail(self, error: ApiError) -> None:
        """It has come to nothing."""
        if not self.done:
            kind = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
            code = kind.get(error.status_code, "server_error")
            self._error = {"code": code, "message": error.detail}
            self._end_as("failed")

    def left(self, asks: list[Ask]) -> None:
        """Nobody waits for it any more; what has come of it stays, unless that is an error."""
        (ask,) = asks
        (choice,) = ask.choices
        if self.done or ask.error is not None or choice.finish in (None, "error"):
            return
        piece = choice.take()
        if piece.first:
            self._begin()
        self._take(piece)
        self._usage = _usage(Usage.of(asks))
        self.cancel()

    def cancel(self) -> None:
        """It has been ended from outside."""
        if not self.done:
            self._end_as("cancelled")

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _number(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _begin(self) -> bytes:
        created = b"" if self._sequence else self._tell(events.Created)
        self.status = "in_progress"
        return created + self._tell(events.InProgress)

    def _take(self, piece: Piece) -> bytes:
        told = [self._step(step) for step in self._outline.take(piece)]
        if piece.finish is not None:
            self._cut = {"length": "max_output_tokens", "abort": "aborted"}.get(piece.finish)
            told += [self._step(step) for step in self._outline.close()]
        return b"".join(told)

    def _finish(self, usage: Usage) -> None:
        self._usage = _usage(usage)
        self._end_as("completed" if self._cut is None else "incomplete")

    def _end_as(self, status: Status) -> None:
        self.status = status
        if status == "completed":
            self._completed_s = int(time.time())
        if self._hear is not None:
            self._ending()
        if self.on_end is not None:
            self.on_end()

    def _ending(self) -> bytes:
        return self._tell(_ENDINGS[self.status])

    def _tell(self, kind: Callable[..., events.Event]) -> bytes:
        return self._write(kind(sequence_number=self._number(), response=self.response))

    def _write(self, event: events.Event) -> bytes:
        written = event.written
        if self._hear is not None:
            self._hear(written)
        return written

    def _step(self, step: Step) -> bytes:
        match step.what:
            case "open":
                news = self._opened(step.part)
            case "more":
                news = (self._more(step),)
            case "close":
                news = self._closed(step.part)
        return b"".join(map(self._write, news))

    def _where(self, part: Part) -> dict[str, Any]:
        return {
            "sequence_number": self._number(),
            "output_index": part.index,
            "item_id": self._item_id(part),
        }

    def _opened(self, part: Part) -> Iterable[events.Event]:
        item = self._item(part, begun=True)
        number = self._number()
        yield events.ItemAdded(sequence_number=number, output_index=part.index, item=item)
        if part.kind != "call":
            yield events.PartAdded(**self._where(part), part=self._content(part))

    def _more(self, step: Step) -> events.Event:
        part, where = step.part, self._where(step.part)
        if part.kind != "text":
            kind = events.ReasoningDelta if part.kind == "reasoning" else events.ArgumentsDelta
            return kind(**where, delta=step.text)
        scores: events.Scores = ()
        if self._score is not None:
            scores = tuple(
                msgspec.Raw(msgspec.json.encode(self._score(*one))) for one in step.scored
            )
            self._scores.setdefault(part.index, []).extend(scores)
        return events.TextDelta(**where, delta=step.text, logprobs=scores)

    def _closed(self, part: Part) -> Iterable[events.Event]:
        if part.kind == "call":
            yield events.ArgumentsDone(**self._where(part), name=part.name, arguments=part.text)
        else:
            if part.kind == "text":
                scores = self._scores_of(part)
                yield events.TextDone(**self._where(part), text=part.text, logprobs=scores)
            else:
                yield events.ReasoningDone(**self._where(part), text=part.text)
            yield events.PartDone(**self._where(part), part=self._content(part))
        number = self._number()
        item = self._item(part)
        yield events.ItemDone(sequence_number=number, output_index=part.index, item=item)

    def _item(self, part: Part, *, begun: bool = False) -> events.Item:
        """Return a part as an item. begun: without its text."""
        status, item_id = self._progress(part), self._item_id(part)
        if part.kind == "call":
            text = "" if begun else part.text
            return events.CallItem(item_id, status, part.call_id, part.name, text)
        content = self._content(part)
        if isinstance(content, events.TextPart):
            return events.MessageItem(item_id, status, () if begun else (content,))
        return events.ReasoningItem(item_id, status, () if begun else (content,))

    def _content(self, part: Part) -> events.TextPart | events.ReasoningPart:
        if part.kind == "text":
            return events.TextPart(part.text, logprobs=self._scores_of(part))
        return events.ReasoningPart(part.text)

    def _scores_of(self, part: Part) -> events.Scores:
        return tuple(self._scores.get(part.index, ()))

    def _progress(self, part: Part) -> events.Progress:
        if not part.closed:
            return "incomplete" if self.done else "in_progress"
        last = part.index == len(self._outline.parts) - 1
        return "incomplete" if last and self._cut is not None else "completed"

    def _item_id(self, part: Part) -> str:
        kind = {"text": "msg", "reasoning": "rs", "call": "fc"}[part.kind]
        return f"{kind}_{self.id.removeprefix('resp_')}_{part.index}"


def response_base(body: ResponsesBody, model: str) -> dict[str, object]:
    """Return the fields of a response that say what was asked. model: as the client names it."""
    given = body.model_dump(
        by_alias=True, exclude_none=True, include={"tools", "tool_choice", "text"}
    )
    return {
        "id": f"resp_{body.request_id or uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": body.kept,
        "temperature": body.temperature,
        "text": {"format": given.get("text", {}).get("format", {"type": "text"})},
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
    }


def _usage(usage: Usage) -> dict[str, object]:
    told: dict[str, object] = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.prompt_tokens_details["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
    if usage.cache is not msgspec.UNSET:
        told["cache"] = usage.cache
    return told
