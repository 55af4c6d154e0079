"""Callers who ask anything of a server, all at once, and see that each of them is answered."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from random import Random

WORDS = ("hello", " the", " an", "ing", "re", " a", "ll")
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "{% for tool in tools %}{{ tool.function.name }}{% endfor %}<tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Of a model that knows tools, in few tokens."""

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look", "parameters": SCHEMA}
FORMS = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    {"structured_outputs": {"choice": ["hello", "the"]}},
    {"structured_outputs": {"regex": "(he|in)*[0-9]"}},
    {"guided_regex": "(unclosed"},
)
HINTS = ({"continues": True}, {"closed": True}, {"priority": 80, "ttl_s": 5}, {"pin": "b"})
PINS = "/v1/cache/pins"

Judge = Callable[[str, dict], str]


class Caller:
    """Sends requests over sockets and notes what comes of them. tenants: whose keys there are."""

    def __init__(self, port: int, seed: int, tenants: tuple[str, ...]) -> None:
        self.port = port
        self.random = Random(seed)
        self.seen: Counter[str] = Counter()
        self._tenants = tenants
        self._kept: list[str] = []
        """Ids of responses."""

    async def call(self) -> None:
        """Send one request, and see it answered, refused with a reason, or left."""
        draw = self.random
        method, path, body, judge = self._request()
        key = draw.choice((*self._tenants * 4, "nobody"))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            data = b"" if body is None else json.dumps(body).encode()
            writer.write(
                f"{method} {path} HTTP/1.1\r\nHost: chaos\r\nAuthorization: Bearer {key}-key\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + data
            )
            if draw.random() < 0.2:
                await self._leave(reader, chunks=draw.choice((0, 0, 1, 3)))
                self.seen["left"] += 1
                return
            answer = await reader.read()
        finally:
            writer.transport.abort()
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if b"chunked" in head.lower():
            rest = _unchunked(rest)
        self.seen[self._judged(status, rest.decode(), body or {}, judge)] += 1

    async def _leave(self, reader: asyncio.StreamReader, *, chunks: int) -> None:
        for _ in range(chunks):
            await reader.read(256)
        await asyncio.sleep(self.random.random() * 0.02)

    def _judged(self, status: int, text: str, body: dict, judge: Judge) -> str:
        """Assert that an answer is whole, or says why it is not; returns what it is."""
        if status != 200:
            assert status in (400, 401, 404, 409, 429, 503, 529), f"{status}: {text}"
            assert json.loads(text)["error"]["message"], text
            return str(status)
        return judge(text, body)

    # ── what is asked ─────────────────────────────────────────────────────────────────────

    def _request(self) -> tuple[str, str, dict | None, Judge]:
        draw = self.random.random()
        if draw < 0.6:
            return "POST", *self._asked_of_old(), _judge_choices
        if draw < 0.75:
            return "POST", "/v1/messages", self._message(), _judge_message
        if draw < 0.9:
            return "POST", "/v1/responses", self._response(), self._judge_response
        if draw < 0.93 and self._kept:
            path = f"/v1/responses/{self.random.choice(self._kept)}"
            method, path = self.random.choice(
                (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"))
            )
            return method, path, None, _judge_any
        if draw < 0.97:
            text = "".join(self.random.choice(WORDS) for _ in range(20))
            name = self.random.choice("abc")
            return "POST", PINS, {"name": name, "prompt": text, "ttl_s": 0.5}, _judge_any
        if draw < 0.98:
            return "GET", PINS, None, _judge_any
        return "DELETE", f"{PINS}/{self.random.choice('abc')}", None, _judge_any

    def _text(self) -> str:
        draw = self.random
        text = "".join(draw.choice(WORDS) for _ in range(draw.choice((1, 5, 20, 60))))
        return text * 100 if draw.random() < 0.05 else text

    def _common(self) -> dict:
        draw = self.random
        body: dict = {
            "stream": draw.random() < 0.6,
            "priority": draw.randint(-2, 2),
            "seed": draw.randint(0, 9),
        }
        if draw.random() < 0.1:
            body["cache_hint"] = draw.choice(HINTS)
        return body

    def _asked_of_old(self) -> tuple[str, dict]:
        draw, text = self.random, self._text()
        body = self._common() | {
            "max_tokens": draw.choice((1, 5, 20, 40)),
            "n": draw.choice((1, 1, 1, 2, 3)),
        }
        if draw.random() < 0.2:
            body |= draw.choice(FORMS)
        else:
            body["ignore_eos"] = draw.random() < 0.5
        if draw.random() < 0.4:
            body["stop"] = draw.sample((*"aeiou", "he", "zz"), 2)
        if draw.random() < 0.05:
            body["max_tokens"] = draw.choice((-1, "many", 2**70))
        if draw.random() < 0.6:
            return "/v1/completions", body | {"prompt": text}
        if draw.random() < 0.5 and "ignore_eos" in body:
            del body["ignore_eos"]
            body["tools"] = [{"type": "function", "function": FUNCTION}]
            body["tool_choice"] = draw.choice(("auto", "required", "none"))
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}

    def _message(self) -> dict:
        draw, text = self.random, self._text()
        body = self._common() | {"max_tokens": draw.choice((5, 20, 40))}
        content: object = text
        if draw.random() < 0.4 and "cache_hint" not in body:
            content = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        if draw.random() < 0.4:
            body["tools"] = [{"name": "look", "input_schema": SCHEMA}]
            body["tool_choice"] = {"type": draw.choice(("auto", "any", "none"))}
        return body | {"messages": [{"role": "user", "content": content}]}

    def _response(self) -> dict:
        draw = self.random
        body = self._common() | {"max_output_tokens": draw.choice((5, 20, 40))}
        if draw.random() < 0.4:
            body["tools"] = [{"type": "function", **FUNCTION}]
            body["tool_choice"] = draw.choice(("auto", "required", "none"))
        elif draw.random() < 0.3:
            body["text"] = {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}
        if draw.random() < 0.3:
            body |= {"background": True, "stream": False}
        elif draw.random() < 0.3:
            body["store"] = False
        if self._kept and draw.random() < 0.3:
            body["previous_response_id"] = draw.choice(self._kept)
        return body | {"input": self._text()}

    def _judge_response(self, text: str, body: dict) -> str:
        if body["stream"]:
            *told, last = [json.loads(data) for data in _events(text)]
            kind = last["type"].removeprefix("response.")
            assert kind in ("completed", "incomplete", "failed"), last
            assert [one["sequence_number"] for one in told] == list(range(len(told)))
            response = last["response"]
            assert response["status"] == kind
        else:
            response = json.loads(text)
        self._kept.append(response["id"])
        if response["status"] == "failed":
            return "cut off"
        assert response["status"] in ("completed", "incomplete", "queued"), response
        if body.get("tool_choice") == "required" and response["status"] == "completed":
            for item in response["output"]:
                assert 0 <= json.loads(item["arguments"])["a"] <= 99, item
        return "a response"


def _judge_any(text: str, body: dict) -> str:
    assert json.loads(text)
    return "managed"


def _judge_choices(text: str, body: dict) -> str:
    if not body["stream"]:
        _assert_ended(json.loads(text)["choices"], body)
        return "whole"
    events = _events(text)
    assert events.pop() == "[DONE]", text[-200:]
    pieces = [json.loads(event) for event in events]
    errors = [piece["error"] for piece in pieces if "error" in piece]
    if errors:
        assert [error["code"] for error in errors] == ["engine_gone"], errors
        return "cut off"
    _assert_ended([one for piece in pieces for one in piece["choices"]], body)
    return "streamed"


def _judge_message(text: str, body: dict) -> str:
    if not body["stream"]:
        message = json.loads(text)
        assert message["stop_reason"], message
        return "a message"
    kinds = [json.loads(data)["type"] for data in _events(text)]
    if kinds[-1] == "error":
        return "cut off"
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop"), kinds
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    return "a message"


def _events(text: str) -> list[str]:
    return [line[6:] for line in text.splitlines() if line.startswith("data: ")]


def _assert_ended(choices: list[dict], body: dict) -> None:
    """Assert that each choice has ended once."""
    ends = Counter(one["index"] for one in choices if one["finish_reason"] is not None)
    assert ends == Counter(range(body["n"])), f"{ends} of {body}"


def _unchunked(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        parts.append(data[:length])
        data = data[length + 2 :]
        if not length:
            return b"".join(parts)
    raise AssertionError("the last chunk is missing")
