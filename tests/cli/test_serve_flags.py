"""The flags of `octavo serve`: vLLM's names work, warn or are refused with the reason."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

import octavo.cli
from octavo.cli.flags import TableCommand, UsageError
from octavo.cli.serve_engine_flags import DEAD, MEMORY, MODEL, NOT_YET, SCHEDULER, SGLANG
from octavo.cli.serve_flags import Effect, Kind
from octavo.cli.serve_front_flags import CHAT, FRONT, REPORTS
from octavo.cli.serve_page import flags_page
from octavo.cli.serve_table import FLAGS, GROUPS, settle
from octavo.config import EngineConfig
from octavo.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]

# The names of vLLM's command that people have in their scripts.
NAMES_OF_VLLM = """
    model tokenizer served-model-name revision dtype max-model-len quantization load-format
    trust-remote-code seed generation-config hf-overrides enforce-eager gpu-memory-utilization
    kv-cache-memory-bytes block-size kv-cache-dtype num-gpu-blocks-override enable-prefix-caching
    prefix-caching-hash-algo prefix-match-unit kv-offloading-size kv-offloading-backend
    kv-transfer-config kv-events-config kv-cache-metrics kv-cache-metrics-sample
    kv-cache-dtype-skip-layers kv-sharing-fast-prefill max-num-seqs max-num-batched-tokens
    enable-chunked-prefill scheduling-policy max-num-partial-prefills max-long-partial-prefills
    long-prefill-token-threshold async-scheduling scheduler-cls stream-interval
    disable-hybrid-kv-cache-manager tensor-parallel-size pipeline-parallel-size data-parallel-size
    enable-expert-parallel enable-lora lora-modules max-loras max-lora-rank max-cpu-loras host port
    uds api-key root-path ssl-keyfile ssl-certfile allowed-origins middleware
    enable-request-id-headers disable-uvicorn-access-log disable-access-log-for-endpoints
    chat-template chat-template-content-format default-chat-template-kwargs enable-auto-tool-choice
    tool-call-parser reasoning-parser response-role enable-prompt-tokens-details
    enable-force-include-usage enable-per-request-metrics enable-log-requests enable-log-outputs
    max-log-len disable-log-stats show-hidden-metrics-for-version custom-histogram-buckets
    otlp-traces-endpoint fingerprint-mode speculative-config swap-space preemption-mode
    use-v2-block-manager num-scheduler-steps guided-decoding-backend config
""".split()  # noqa: SIM905

SAMPLES = {
    Kind.TEXT: "auto",
    Kind.WORD: "model",
    Kind.COUNT: "3",
    Kind.NUMBER: "0.5",
    Kind.TEXTS: "a",
    Kind.NAMES: "a",
    Kind.JSON: '{"a": 1}',
}


def read(*line, environment=None):
    """Return the options of a command line."""
    found = []
    command = TableCommand(
        "serve", "Serve.", GROUPS, lambda given: found.append(settle(given, environment or {}))
    )
    command.run(list(line), "octavo serve")
    return found[0]


def line_of(flag):
    if flag.kind is Kind.SWITCH:
        return [f"--{flag.name}"]
    return [f"--{flag.name}", SAMPLES[flag.kind]]


@pytest.mark.parametrize("name", NAMES_OF_VLLM)
def test_every_flag_of_vllm_is_known(name):
    assert name in FLAGS


@pytest.mark.parametrize("flag", [f for f in FLAGS.values() if f.effect is Effect.NONE])
def test_a_flag_without_an_effect_is_taken_with_a_warning(flag):
    options = read(*line_of(flag))

    assert options.notes == (f"--{flag.name} has no effect: {flag.reason}",)
    assert options.ignored == {f"--{flag.name}": flag.reason}
    assert flag.name not in options.values


@pytest.mark.parametrize("flag", [f for f in FLAGS.values() if f.effect is Effect.NEUTRAL])
def test_what_there_is_not_is_refused_with_the_reason_and_the_way_out(flag):
    if flag.kind is Kind.SWITCH:
        line = [f"--no-{flag.name}" if True in flag.neutral else f"--{flag.name}"]
    else:
        line = line_of(flag)

    with pytest.raises(ConfigError) as refused:
        read(*line)

    assert str(refused.value).startswith(f"--{flag.name} ")
    assert flag.reason in str(refused.value)
    assert "leave it out" in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        ["-tp", "1"],
        ["--quantization", "none"],
        ["-q", "gguf"],
        ["--hf-overrides", "{}"],
        ["--no-enable-lora"],
        ["--kv-offloading-size", "0"],
        ["--schedule-low-priority-values-first"],
    ],
)
def test_a_refused_flag_is_taken_if_it_asks_for_nothing(line):
    assert read(*line) == read()


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (["some/model"], "model", "some/model"),
        (["--model", "m"], "model", "m"),
        (["--max_model_len", "8k"], "max-model-len", 8000),
        (["--max-model-len=8K"], "max-model-len", 8192),
        (["--kv-cache-memory-bytes", "2GiB"], "kv-cache-memory-bytes", 2 << 30),
        (["--kv-cache-memory-bytes", "1.5GB"], "kv-cache-memory-bytes", 1_500_000_000),
        (["--seed", "-3"], "seed", -3),
        (["--api-key", "a", "--api-key", "b"], "api-key", ("a", "b")),
        (["--api-key", "a", "model"], "api-key", ("a",)),
        (["--served-model-name", "a", "b"], "served-model-name", ("a", "b")),
        (["--no-enable-prefix-caching"], "enable-prefix-caching", False),
        (["--allowed-origins", '["*"]'], "allowed-origins", ["*"]),
        (["--gpu-memory-utilization", "0.8"], "gpu-memory-utilization", 0.8),
    ],
)
def test_a_flag_gets_its_value(line, name, value):
    options = read(*line)

    assert options.values[name] == value
    assert name in options.given


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (["--model-path", "m"], "model", "m"),
        (["--context-length", "100"], "max-model-len", 100),
        (["--max-running-requests", "7"], "max-num-seqs", 7),
        (["--page-size", "32"], "block-size", 32),
        (["--disable-radix-cache"], "enable-prefix-caching", False),
        (["--radix-eviction-policy", "lfu"], "eviction-policy", "lfu"),
        (["--schedule-policy", "lpm"], "scheduling-policy", "longest_prefix"),
        (["--schedule-policy", "dfs-weight"], "scheduling-policy", "depth_first"),
        (["--chunked-prefill-size", "-1"], "long-prefill-token-threshold", 0),
        (["--mem-fraction-static", "0.7"], "gpu-memory-utilization", 0.7),
        (["--max-queued-requests", "9"], "max-queued-requests", 9),
    ],
)
def test_a_flag_of_sglang_is_ours(line, name, value):
    assert read(*line).values[name] == value


def test_a_synonym_that_means_something_else_says_so():
    assert "weights and KV" in read("--mem-fraction-static", "0.7").notes[0]
    assert "--max-num-batched-tokens" in read("--chunked-prefill-size", "64").notes[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--tp", "2"], "--tensor-parallel-size 2: one engine uses one device; .* or give 1"),
        (["--page-size", "8", "--block-size", "16"], "are the same setting: give one"),
        (["--schedule-policy", "random"], "is not one of fcfs, lpm, dfs-weight"),
        (["--port", "x"], "--port x must be a whole number"),
        (["--port", "1.5"], "--port 1.5 must be a whole number"),
        (["--drain-timeout", "soon"], "--drain-timeout soon must be a number"),
        (["--allowed-origins", "*"], "--allowed-origins .* is no JSON"),
        (["--chat-template-content-format", "openai"], "is not one of auto, string"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_flag(line, message):
    with pytest.raises(ConfigError, match=message):
        read(*line)


def test_an_unknown_flag_is_refused():
    with pytest.raises(UsageError, match="unrecognized arguments: --max-model-length"):
        read("--max-model-length", "3")


def test_a_file_gives_flags_in_both_spellings_and_the_line_goes_before(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: some/model\nmax_num_seqs: 8\nmax-model-len: 8k\napi-key: [a, b]\n"
        "enable-prefix-caching: false\nswap-space: 4\nseed:\npage-size: 64\n"
        "default-chat-template-kwargs: {thinking: true}\n"
    )

    options = read("--config", str(file), "--max-num-seqs", "9", "--block-size", "32")

    assert options.text("model") == "some/model"
    assert options.count("max-num-seqs") == 9
    assert options.count("max-model-len") == 8000
    assert options.count("block-size") == 32, "a flag goes before a synonym in the file"
    assert options.texts("api-key") == ("a", "b")
    assert not options.switch("enable-prefix-caching")
    assert options.mapping("default-chat-template-kwargs") == {"thinking": True}
    assert "seed" not in options.given
    assert list(options.ignored) == ["--swap-space"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-seq: 3", "no flag 'max-num-seq'; did you mean max-num-seqs"),
        ("port: many", "serve.yaml: --port many must be a whole number"),
        ("port: [1]", "must be a whole number"),
        ("open-metrics: sometimes", "must be true or false"),
        ("max-n: 1\nmax_n: 2", "gives max-n twice, in both spellings"),
        ("port: 1\nport: 2", "line 2: 'port' stands there twice"),
        ("- port", "must hold `name: value` lines"),
        ("a: [", "is no YAML"),
        ("config: other.yaml", "no flag 'config'"),
        ("tp: 2", "--tensor-parallel-size 2"),
        ("api-key: {secret: 1}", r"--api-key \(a key\) must be a text"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused(tmp_path, text, message):
    file = tmp_path / "serve.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read("--config", str(file))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read("--config", str(tmp_path / "nothing.yaml"))


def test_variables_stand_for_flags_that_are_not_given():
    environment = {
        "VLLM_API_KEY": "theirs",
        "OCTAVO_API_KEY": "ours",
        "VLLM_MAX_N_SEQUENCES": "4",
        "VLLM_BATCH_INVARIANT": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }

    options = read("--max-n", "5", environment=environment)

    assert options.texts("api-key") == ("ours",)
    assert options.count("max-n") == 5
    assert options.switch("deterministic")
    assert "VLLM_SERVER_DEV_MODE has no effect" in options.notes[0]


def test_a_variable_that_cannot_be_read_is_refused_without_its_value():
    with pytest.raises(ConfigError, match="VLLM_MAX_N_SEQUENCES must be a whole number") as refused:
        read(environment={"VLLM_MAX_N_SEQUENCES": "many"})

    assert "many" not in str(refused.value)


def test_every_flag_of_the_engine_that_works_is_one_of_its_settings():
    known = {one.name.replace("_", "-") for one in fields(EngineConfig)}
    elsewhere = {
        *("tokenizer", "served-model-name", "generation-config"),
        *("max-total-tokens", "enable-prefix-caching"),
        *("max-queued-requests", "stream-interval"),
    }
    groups = (*MODEL, *MEMORY, *SCHEDULER, *NOT_YET, *SGLANG, *DEAD)
    works = {flag.name: flag for flag in groups if flag.effect is Effect.WORKS}

    assert works.keys() - known == elsewhere
    for name in works.keys() & known:
        default = getattr(EngineConfig(), name.replace("-", "_"))
        # A server has tokens to send, and long prompts are cut as suits its device.
        own = {"give-way-ms": 5, "touch-ahead-mb": 256, "max-long-partial-prefills": None}
        expected = own.get(name, default)
        assert (works[name].default or None) == (expected or None), name


def test_every_other_flag_that_works_is_looked_at():
    sources = "".join(
        (Path(octavo.cli.__file__).parent / name).read_text()
        for name in ("serve.py", "serve_settings.py", "serve_parts.py")
    )
    works = [flag for flag in (*FRONT, *CHAT, *REPORTS) if flag.effect is Effect.WORKS]

    assert [flag.name for flag in works if f'"{flag.name}"' not in sources] == [
        "chat-template-content-format"  # auto and string are the same
    ]


def test_the_page_of_all_flags_is_the_table_s():
    page = ROOT / "docs" / "reference" / "serve-flags.md"

    assert page.read_text() == flags_page(), (
        "python -m octavo.cli.serve_page > docs/reference/serve-flags.md"
    )


def test_help_lists_every_flag(capsys):
    TableCommand("serve", "Serve.", GROUPS, print).run(["--help"], "octavo serve")

    shown = capsys.readouterr().out
    assert [flag.name for flag in FLAGS.values() if flag.name not in shown] == []
