"""Servers of a tiny model: over a runner that computes nothing, and over the real engine."""

from __future__ import annotations

import json
from pathlib import Path

from octavo import LLM
from octavo.contract.batch import Sampled
from octavo.engine.messages import CoreFacts
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.near_core import fake_loop
from octavo.text.tokenizer import Tokenizer
from tiny_model import TOKENS

VOCABULARY = len(TOKENS)
HELLO = [{"role": "user", "content": "hello"}]


def worded(tokenizer: Tokenizer, **options) -> dict:
    """Options of `served` for a fake engine whose tokens have texts."""
    return {
        "build": lambda: fake_loop(vocab_size=VOCABULARY, **options),
        "tokenizer": tokenizer,
    }


class Speaker(FakeRunner):
    """A runner whose model says certain texts in the order in which it is asked, then ends."""

    def __init__(self, tokenizer: Tokenizer, texts: list[str]) -> None:
        super().__init__((4,), vocab_size=VOCABULARY)
        self._lines = [
            [*tokenizer.encode(text, add_special_tokens=False), *tokenizer.eos_token_ids]
            for text in texts
        ]
        self._line: dict[int, list[int]] = {}

    def _sample(self, piece, sample, text, tokens, result):
        super()._sample(piece, sample, text, tokens, result)
        line = self._line.setdefault(sample.seq, self._lines[len(self._line) % len(self._lines)])
        # A step that was begun before the end was known comes after it.
        token = line[min(piece.start + len(piece.tokens) - sample.prompt_length, len(line) - 1)]
        said = Sampled(token, -1.0, result.sampled[sample.seq].logprobs)
        result.sampled[sample.seq] = said
        self._last[sample.seq] = token


def saying(tokenizer: Tokenizer, *texts: str) -> dict:
    """Options of `served` for a model that says certain texts, one an answer."""
    return {
        "build": lambda: fake_loop(
            4000,
            vocab_size=VOCABULARY,
            max_model_len=8000,
            max_num_batched_tokens=4000,
            runner=Speaker(tokenizer, [*texts]),
        ),
        "tokenizer": tokenizer,
    }


def real(llm: LLM) -> dict:
    """Options of `served` for the engine of an `LLM`, which the server closes."""
    built = llm.built
    limit = built.max_model_len
    facts = CoreFacts(
        namespace=built.namespace,
        vocab_size=built.spec.vocab_size,
        max_model_len=limit,
        longest_text=limit,
        num_blocks=built.num_blocks,
        block_sizes=built.layout.block_sizes,
        block_bytes=1,
        max_num_seqs=llm.config.max_num_seqs,
        max_num_batched_tokens=llm.config.max_num_batched_tokens,
        settings={"seed": llm.config.seed},
    )
    return {"build": lambda: (built.engine.loop, facts), "tokenizer": built.tokenizer}


def tiny_llm(path: Path) -> LLM:
    """The tiny model with a small memory."""
    return LLM(str(path), kv_cache_memory_bytes=1 << 20, max_num_seqs=8)


def events(text: str) -> list[dict]:
    """Return the events of a stream, which must end as streams do."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    data = [block.removeprefix("data: ") for block in blocks if block.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


def joined(chunks: list[dict], index: int = 0) -> str:
    """Return the text of one answer of a stream."""
    parts = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
    return "".join(
        part["text"] if "text" in part else part["delta"].get("content", "") for part in parts
    )
