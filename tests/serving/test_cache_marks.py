"""`cache_control` marks end where the text that they are for ends, whatever the template writes."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import scripted

from octavo.server.cache_wishes import CacheMark, CacheWish, ranges
from octavo.server.chat_answers import mark_ends
from octavo.server.chat_request import ChatRequest
from octavo.server.parts import Parts, ServedModel
from octavo.server.prompting import Prompter
from octavo.server.schemas.messages import MARKED_PRIORITY
from octavo.text.conversation import Turn

PATH = "/v1/messages"
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
WISH = CacheWish(ttl_s=300.0, priority=MARKED_PRIORITY)


def block(text, mark=None):
    return {"type": "text", "text": text, **({"cache_control": mark} if mark else {})}


def test_marks_keep_what_lies_before_them(tiny_tokenizer):
    async def test(server):
        reply = await server.post(
            PATH,
            max_tokens=5,
            system=[block("hello the the", HOUR)],
            messages=[
                {"role": "user", "content": [block("in the hello", MARK)]},
                {"role": "assistant", "content": "the"},
                {"role": "user", "content": "again"},
            ],
        )
        assert reply.status_code == 200, reply.text
        (asked,) = server.core.asked
        first, second = asked.retention
        decode = server.parts.model.tokenizer.decode
        kept = [
            decode(list(asked.prompt[one.start : one.end]), skip_special_tokens=False)
            for one in (first, second)
        ]
        assert (
            kept[0] == "<|im_start|>system\nhello the the<|im_end|>\n<|im_start|>"[: len(kept[0])]
        )
        assert "".join(kept).startswith("<|im_start|>system\nhello the the<|im_end|>\n")
        assert kept[1].rstrip().endswith("in the hello<|im_end|>")
        assert [(one.ttl_s, one.priority) for one in (first, second)] == [
            (3600.0, MARKED_PRIORITY),
            (300.0, MARKED_PRIORITY),
        ]
        usage = reply.json()["usage"]
        assert usage["cache_creation_input_tokens"] == second.end - 2
        assert sum(usage[name] for name in usage if "input" in name) == len(asked.prompt)

    _near(test, tiny_tokenizer)


def test_so_many_places_of_a_request_are_marked(tiny_tokenizer):
    async def test(server):
        turns = [
            {"role": role, "content": [block("the", MARK)]}
            for role in ("user", "assistant", "user", "assistant", "user")
        ]
        reply = await server.post(PATH, max_tokens=5, messages=turns)
        assert reply.status_code == 400
        assert "at most 4" in reply.json()["error"]["message"]
        assert (await server.post(PATH, max_tokens=5, messages=turns[:3])).status_code == 200

    _near(test, tiny_tokenizer)


TEMPLATES = {
    "plain": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "looks at the last": (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% if loop.last %}!{% else %};{% endif %}{% endfor %}"
    ),
    "drops old thoughts": (
        "{% for m in messages %}<{{ m.role }}>{% if loop.last %}{{ m.reasoning }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    ),
    "tools first": "{{ tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "counts": "{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "wants a pair": (
        "{% if messages|length is odd %}{{ raise_exception('odd') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    ),
}


@pytest.mark.parametrize("template", TEMPLATES)
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    texts=st.lists(st.text("the in", min_size=1, max_size=9), min_size=2, max_size=4),
    data=st.data(),
)
def test_a_mark_never_reaches_beyond_what_another_conversation_could_share(
    tiny_tokenizer, template, texts, data
):
    if template == "wants a pair" and len(texts) % 2:
        texts.append("the")
    turns = tuple(
        Turn(role=("user", "assistant")[place % 2], content=text, reasoning="an" * place)
        for place, text in enumerate(texts)
    )
    places = data.draw(st.lists(st.integers(0, len(turns)), unique=True, max_size=4))
    marks = tuple(CacheMark(place, WISH) for place in sorted(places))
    chat = ChatRequest(turns=turns, marks=marks)
    tokenizer = tiny_tokenizer.with_template(TEMPLATES[template])
    facts = SimpleNamespace(longest_text=1000)
    model = ServedModel(names=("t",), root="t", tokenizer=tokenizer, created_s=1)
    prompter = Prompter(Parts(core=SimpleNamespace(facts=facts), model=model))

    async def test():
        prompt = await prompter.conversation(chat)
        for mark in marks:
            ends = await mark_ends(prompter, replace(chat, marks=(mark,)), prompt)
            for end, _ in ends:
                alone = replace(chat, turns=turns[: mark.turns] or (Turn(role="user"),), marks=())
                alone = replace(alone, add_generation_prompt=False)
                ids = await prompter.encode(await prompter.render(alone), special=False)
                assert tuple(ids[:end]) == prompt.ids[:end]
                if template == "plain" and mark.turns:
                    assert end == len(ids)
        kept = ranges(await mark_ends(prompter, chat, prompt))
        assert all(one.start < one.end <= len(prompt.ids) for one in kept)
        assert all(one.end == other.start for one, other in itertools.pairwise(kept))

    asyncio.run(test())


def _near(test, tokenizer):
    async def run():
        async with scripted(tokenizer, "well") as server:
            await asyncio.wait_for(test(server), 10)

    asyncio.run(run())
