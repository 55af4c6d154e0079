"""Chat templates render as jinja2 renders them, whichever engine takes them."""

from __future__ import annotations

from datetime import datetime

import pytest

from octavo.errors import RequestError
from octavo.text.conversation import ToolCall, Turn
from octavo.text.formats.table import TOOL_FORMATS
from octavo.text.template import ChatTemplate

CHAT = [{"role": "user", "content": "Hi <there> & 'all'"}]


def render(source: str, /, **variables: object) -> str:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(CHAT, variables)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Hi <there> & 'all'"),
        ("{% if true %}\n  {% if true %}\nx\n  {% endif %}\n{% endif %}\n", "x\n"),
        ("{{ missing }}|{{ none }}|{{ true }}|{{ [1, none] }}", "|None|True|[1, None]"),
        ("{{ tools | tojson }}", '[{"a": "<é>", "b": null}]'),
        ("{{ tools | tojson(indent=1) }}", '[\n {\n  "a": "<é>",\n  "b": null\n }\n]'),
        (
            "{% set n = namespace(i=1) %}{% for m in messages %}{% set n.i = 5 %}{% endfor %}"
            "{{ n.i }}",
            "5",
        ),
        ("{{ messages[0]['content'].split(' ')[0].lower().startswith('h') }}", "True"),
        ("{{ 'x'.strip('x') }}{{ messages[-1].role.title() }}", "User"),
    ],
)
def test_a_template_renders_as_models_expect(source, text):
    assert render(source, tools=[{"a": "<é>", "b": None}]) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{{ messages | length }}",
        "{% generation %}{{ bos_token }}{{ messages | length }}{% endgeneration %}",
    ],
)
def test_variables_change_neither_special_tokens_nor_messages(source):
    assert render(source, bos_token="other", messages=[]) == "<s>1"


@pytest.mark.parametrize("name", ["self", "name", "source", "template_name", "args", "context"])
@pytest.mark.parametrize(
    "source", ["{{ bos_token }}", "{% generation %}{{ bos_token }}{% endgeneration %}"]
)
def test_a_variable_may_have_any_name(source, name):
    assert render(source, **{name: 1}) == "<s>"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}!", "user!"),
        ("{{ '%s-%s' | format('a', 'b') }}{{ 'abc' | center(5) }}", "a-b abc "),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
    ],
)
def test_what_minijinja_refuses_goes_to_jinja2(source, text):
    assert render(source) == text


def test_a_template_can_ask_for_the_date():
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


@pytest.mark.parametrize("refused", ["", "{% generation %}{% endgeneration %}"])
def test_a_template_that_rejects_a_chat_says_why(refused):
    with pytest.raises(RequestError, match="rejects this chat: roles must alternate"):
        render(refused + "{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content.a.b.c }}", "{% if %}", "{{ 1 / 0 }}", "{{ messages + 1 }}"]
)
def test_a_template_that_fails_is_an_error_of_the_request(source):
    with pytest.raises(RequestError, match="cannot render this chat"):
        render(source)


def test_a_template_cannot_reach_python():
    with pytest.raises(RequestError):
        render("{{ messages.__class__.__mro__[1].__subclasses__() }}")


def test_a_chat_with_tools_uses_the_template_for_tools():
    templates = ChatTemplate({"default": "plain", "tool_use": "tools"}, {})

    assert templates.render(CHAT, {"tools": [{"name": "f"}]}) == "tools"
    assert templates.render(CHAT, {"tools": None}) == "plain"


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("{% if tools %}x{% endif %}", True),
        ("{{ message['tools'] }}", True),
        ("{%- for t in xml.tools %}", True),
        ("You have tools {{ 'and more tools here' }}", False),
        ("{{ tools_in_user_message }}", False),
    ],
)
def test_a_template_tells_what_it_reads(source, reads):
    assert ChatTemplate({"default": source}, {}).reads("tools") is reads


ARGUMENTS = ToolCall(id="c", name="f", arguments=' {"b":1.50, "a":"\\u00e9"}').for_template()


@pytest.mark.parametrize("dialect", ["", "{% generation %}{% endgeneration %}"])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ call.function.arguments | tojson }}", '{"b":1.50, "a":"\\u00e9"}'),
        (
            "{{ call.function | tojson }}",
            '{"name": "f", "arguments": {"b":1.50, "a":"\\u00e9"}}',
        ),
        (
            "{{ [call] | tojson }}",
            '[{"id": "c", "type": "function", "function": '
            '{"name": "f", "arguments": {"b":1.50, "a":"\\u00e9"}}}]',
        ),
        (
            "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};"
            "{% endfor %}",
            "b=1.5;a=é;",
        ),
        ("{{ call.function.arguments is mapping }}", "True"),
    ],
)
def test_a_model_reads_its_arguments_as_it_wrote_them(dialect, source, text):
    assert render(dialect + source, call=ARGUMENTS) == text


def test_another_template_takes_the_place_of_all():
    templates = ChatTemplate({"default": "a", "tool_use": "b"}, {"bos_token": "<s>"})

    replaced = templates.replaced("{{ bos_token }}")

    assert replaced.render(CHAT, {"tools": [1]}) == "<s>"
    assert (templates.names, templates.named("tool_use")) == (["default", "tool_use"], "b")


MARKED = (
    "{% for call in messages[0].tool_calls %}<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for key, value in call.function.arguments|items %}<parameter={{ key }}>\n"
    "{{ value | string if value is string or value is number else value | tojson }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}"
)


def test_parameters_of_a_history_stand_as_the_model_wrote_them():
    arguments = '{"text": "a <b>\\n\\"é\\"", "size": 3, "part": 0.25, "rows": [1, "x", null]}'
    call = ToolCall(id="1", name="look", arguments=arguments)

    rendered = ChatTemplate({"default": MARKED}, {}).render(
        [Turn(role="assistant", calls=(call,)).for_template()], {}
    )

    assert rendered == TOOL_FORMATS["qwen3_coder"].spelling.write([("look", arguments)])
