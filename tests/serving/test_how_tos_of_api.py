"""What how-tos of the API tell a reader to type runs as it stands, on an engine made for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import openai
import pytest
from scripted import scripted
from sockets import in_a_thread

from octavo.server.parts import ServedModel

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
SAYS = '<think>they ask</think>well<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
BEFORE = {
    "read-reasoning": "messages = [{'role': 'user', 'content': 'Why?'}]",
}
"""What a page takes as known."""


def blocks_of(name):
    """Return the blocks of Python of a page that ask a server."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    return [block for block in blocks if "LLM" not in block]


@pytest.mark.parametrize("name", ["call-tools", "messages", "read-reasoning", "responses"])
def test_the_code_of_a_page_asks_a_server_what_it_answers(name, tiny_tokenizer, capsys):
    model = ServedModel(
        names=("smollm2-135m",), root="tiny.gguf", tokenizer=tiny_tokenizer, created_s=1
    )
    says = SAYS if name == "call-tools" else SAYS.partition("<tool_call>")[0]
    if name == "messages":  # whose first block is printed as a text
        says = "well"
    with in_a_thread(scripted(tiny_tokenizer, says, model=model)) as url:
        names = {"client": openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)}
        exec(BEFORE.get(name, ""), names)
        for block in blocks_of(name):
            here = block.replace("http://127.0.0.1:8000", url)
            exec(compile(here, f"{name}.md", "exec"), names)

    assert re.search("well|weather", capsys.readouterr().out)


def test_every_page_names_the_model_that_is_served_without_a_name():
    for page in PAGES.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for model in re.findall(r'\bcreate\(\s*model="([^"]*)"', text):
            assert model == "smollm2-135m", page.name


def test_the_text_that_is_pinned_fills_a_block():
    """A word is a token, or more; blocks have 16."""
    page = (PAGES / "pins-over-http.md").read_text(encoding="utf-8")
    (body,) = re.findall(r"/v1/cache/pins .* -d '(\{.*?\})'\n```", page, re.S)

    assert len(json.loads(body)["messages"][0]["content"].split()) >= 16
