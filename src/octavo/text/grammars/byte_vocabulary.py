"""A vocabulary of single bytes, for questions about texts that no model is asked."""

from __future__ import annotations

import json

from octavo.text.gguf_vocabulary import byte_alphabet

END = 256
"""The token that ends a text; all others are the bytes of their number."""


def byte_vocabulary() -> str:
    """Return its definition, as tokenizer.json has it."""
    letters = byte_alphabet()
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
    }  # fmt: skip
    end = {
        "id": END, "content": "<end>", "special": True, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False,
    }  # fmt: skip
    vocabulary = {letters[byte]: byte for byte in range(256)} | {"<end>": END}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [end],
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    )
