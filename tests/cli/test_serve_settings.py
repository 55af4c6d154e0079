"""What the flags of `octavo serve` become: settings of the engine, the server and its tenants."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess

import pytest

from octavo.cli import run
from octavo.cli.generation import generation_defaults
from octavo.cli.serve_parts import templated
from octavo.cli.serve_settings import (
    engine_config,
    key_table,
    server_settings,
    tls_of,
    told_of,
)
from octavo.cli.serve_table import FLAGS, settle
from octavo.errors import ConfigError, EngineGone
from octavo.models.gguf import GGUFFile
from octavo.server.listen import address_of, is_local, listen, listen_at_path, notice_vanished
from octavo.server.remote.client import ProcessCore
from octavo.server.tenants import SHARED
from octavo.text.formats.table import AUTO, NONE, REASONING_FORMATS, TOOL_FORMATS
from octavo.text.tokenizer import Tokenizer


def options(**flags):
    return settle({name.replace("_", "-"): value for name, value in flags.items()}, {})


def config_of(**flags):
    given = options(**flags)
    return engine_config(given, key_table(given).tenants)


def test_the_engine_gets_its_settings():
    config, notes = config_of(
        model="m", max_num_seqs="7", kv_cache_dtype="int8", block_size="32", seed="3"
    )

    assert config.model == "m"
    assert (config.max_num_seqs, config.block_size, config.seed) == (7, 32, 3)
    assert config.kv_cache_dtype == "int8"
    assert config.tenants is None
    assert not notes


@pytest.mark.parametrize(
    ("flags", "on_cpu", "on_gpu"),
    [
        ({}, (128, 1), (512, 2)),
        ({"long_prefill_token_threshold": "300"}, (300, 1), (300, 2)),
        ({"long_prefill_token_threshold": "0"}, (0, 1), (0, 2)),
        ({"max_long_partial_prefills": "3"}, (128, 3), (512, 3)),
    ],
)
def test_long_prompts_get_what_suits_the_device_unless_told(flags, on_cpu, on_gpu):
    config, _ = config_of(**flags)

    assert (config.long_prefill_tokens("cpu"), config.long_prefills("cpu")) == on_cpu
    assert (config.long_prefill_tokens("cuda:1"), config.long_prefills("cuda:1")) == on_gpu


def test_tokens_that_sglang_asks_for_are_blocks():
    config, _ = config_of(max_total_tokens="1001", block_size="16")

    assert config.num_gpu_blocks_override == 63
    with pytest.raises(ConfigError, match="are the same setting"):
        config_of(max_total_tokens="1001", num_gpu_blocks_override="3")
    with pytest.raises(ConfigError, match="--max-total-tokens must be at least 1"):
        config_of(max_total_tokens="0")


def test_settings_of_gpus_are_left_out_with_a_warning_where_there_is_none():
    config, notes = config_of(device="cpu", gpu_memory_utilization="0.8", enforce_eager=True)

    assert config.gpu_memory_utilization is None
    assert not config.enforce_eager
    assert notes == [
        "--gpu-memory-utilization has no effect: there is no GPU here: give "
        "--kv-cache-memory-bytes",
        "--enforce-eager has no effect: there is no GPU here",
    ]
    config, notes = config_of(device="cuda", gpu_memory_utilization="0.8", enforce_eager=True)
    assert config.gpu_memory_utilization == 0.8
    assert config.enforce_eager
    assert not notes


def test_every_tenant_is_named_to_the_engine(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {alice: {keys: k, guaranteed: 0.25}, bob: {keys: l}}")

    config, _ = config_of(
        api_key_file=str(file), api_key=["m"], tenants='{"bob": {"maximum": 0.5}}'
    )

    shares = json.loads(config.tenants)
    assert shares["alice"] == {"guaranteed": 0.25, "maximum": 1.0}
    assert shares["bob"] == {"guaranteed": 0.0, "maximum": 0.5}
    assert [name for name in shares if name.startswith("key-")]
    assert len(shares) == 3


def test_a_share_for_nobody_is_refused():
    with pytest.raises(ConfigError, match="--tenants names 'bob', who has no key"):
        config_of(tenants='{"bob": {"maximum": 0.5}}', api_key=["k"])


def test_tenants_have_a_memory_of_their_own_unless_they_are_told_to_share():
    own = key_table(options(api_key=["a", "b"]))
    shared = key_table(options(api_key=["a", "b"], share_prefix_cache=True))

    assert own.tenant("a").salt() != own.tenant("b").salt()
    assert [tenant.namespace for tenant in shared.tenants] == [SHARED, SHARED]
    assert key_table(options()).tenant(None).salt() == ""


def test_limits_are_for_all_tenants_and_a_file_says_otherwise(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {alice: {keys: k, max_running: 9}}")

    keys = key_table(
        options(
            api_key_file=str(file),
            api_key=["m"],
            tenant_max_running="2",
            tenant_max_queued="3",
            tenant_tokens_per_minute="100",
        )
    )

    alice, other = keys.tenant("k").limits, keys.tenant("m").limits
    assert (alice.max_running, alice.max_queued) == (9, 3)
    assert (other.max_running, other.tokens_per_minute) == (2, 100)


def test_the_server_gets_its_settings():
    settings = server_settings(
        options(
            max_n="3",
            max_body_bytes="1MiB",
            disable_access_log_for_endpoints=["/health,/ping", "/metrics"],
            allowed_origins='["https://a.example"]',
            enable_prefix_caching=False,
            default_chat_template_kwargs='{"thinking": true}',
        )
    )

    assert settings.bounds.max_n == 3
    assert settings.bounds.max_body_bytes == 1 << 20
    assert settings.quiet_paths == {"/health", "/ping", "/metrics"}
    assert settings.cors.origins == ("https://a.example",)
    assert not settings.prefix_caching
    assert settings.chat_variables == {"thinking": True}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_n": "0"}, "max_n must be"),
        ({"header_timeout": "nan"}, "header_timeout must be"),
        ({"drain_timeout": "-1"}, "drain_timeout_s must be"),
        ({"allowed_origins": '"*"'}, "--allowed-origins must be a JSON list"),
        ({"default_chat_template_kwargs": "[]"}, "must be a JSON object"),
        ({"allowed_origins": '["*"]', "allow_credentials": True}, "cannot have credentials"),
    ],
)
def test_settings_that_cannot_be_are_refused(flags, message):
    with pytest.raises(ConfigError, match=message):
        server_settings(options(**flags))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"ssl_keyfile": "k"}, "--ssl-keyfile needs a certificate"),
        ({"ssl_certfile": "/nothing"}, "HTTPS cannot be set up from /nothing: .*No such file"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": "3"}, "must be 0, 1 or 2"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": "2"}, "give --ssl-ca-certs"),
    ],
)
def test_https_that_cannot_be_spoken_is_refused(flags, message):
    with pytest.raises(ConfigError, match=message):
        tls_of(options(**flags))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the key")
def test_a_key_with_a_password_is_refused_instead_of_asking(tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *[
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-subj",
                "/CN=x",
            ],
            *("-passout", "pass:secret", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )

    with pytest.raises(ConfigError, match="encrypted"):
        tls_of(options(ssl_certfile=str(certificate), ssl_keyfile=str(key)))


def test_administrators_are_told_the_flags_and_no_keys():
    told = told_of(options(api_key=["secret"], port="1", swap_space="4"))

    assert told["flags"] == {"--api-key": "(given)", "--port": 1}
    assert list(told["ignored"]) == ["--swap-space"]


def test_an_address_in_use_is_an_error_before_any_model_is_looked_for(capsys):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert run(["serve", "/no/such/model", "--port", str(port)]) == 2

    error = capsys.readouterr().err
    assert error.splitlines()[-1] == (
        f"octavo: error: 127.0.0.1 port {port} is in use: end what listens there, or give another "
        "--port"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["/no/such/model", "--port", "0"], "/no/such/model"),
        (["--port", "70000"], "--port must be from 0 to 65535"),
        (["--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid port 8000"),
        (["--uds", "/no/such/folder/socket"], "cannot listen at /no/such/folder/socket"),
        (["--host", ""], "--host must not be empty: 0.0.0.0 is all"),
        (["--uds", ""], "--uds must be the path of a socket, got ''"),
        (["--uds", "\0x"], "--uds must be the path of a socket"),
        (["--uds", "x", "--port", "1"], "--uds and --port are two places"),
        (["--root-path", "llm/"], "--root-path llm/ must begin with / and not end with it"),
        (["--served-model-name", ""], "--served-model-name: a name must not be empty"),
        (["-tp", "2"], "one engine uses one device"),
    ],
)
def test_a_server_that_cannot_start_says_why(capsys, line, message):
    assert run(["serve", *line]) == 2

    assert message in capsys.readouterr().err.splitlines()[-1]


def test_without_the_extra_the_way_to_it_is_told(capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "fastapi" else find(name)
    )

    assert run(["serve"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "octavo: error: octavo serve needs what is not installed here (fastapi): "
        "pip install 'octavo[serve]'\n"
    )
    run(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    (check,) = [one for one in checks if one["name"] == "octavo serve"]
    assert check["remedy"] == "pip install 'octavo[serve]'"


def test_a_socket_that_nobody_listens_at_is_replaced(tmp_path):
    path = str(tmp_path / "socket")
    listen_at_path(path).close()
    with listen_at_path(path) as server:
        assert address_of(server, tls=False) == f"unix:{path}"
        assert is_local(server)
        with pytest.raises(ConfigError, match="in use"):
            listen_at_path(path)


def test_a_file_is_not_replaced_by_a_socket(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")

    with pytest.raises(ConfigError, match="in use"):
        listen_at_path(str(path))

    assert path.read_text() == "mine"


def test_an_address_is_written_as_people_open_it():
    with listen("127.0.0.1", 0) as server:
        port = server.getsockname()[1]
        assert address_of(server, tls=True) == f"https://127.0.0.1:{port}"
    with listen("0.0.0.0", 0) as server:
        assert not is_local(server)
    if socket.has_ipv6:
        with listen("::1", 0) as server:
            assert address_of(server, tls=False).startswith("http://[::1]:")
            assert is_local(server)


def test_a_model_s_own_sampling_options_are_defaults(tmp_path):
    file = tmp_path / "generation_config.json"
    file.write_text(
        json.dumps({"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 50, "eos_token_id": 2})
    )

    assert generation_defaults("auto", tmp_path) == {
        "temperature": 0.6,
        "top_p": 0.9,
        "max_tokens": 50,
    }
    assert generation_defaults("vllm", tmp_path) == {}
    assert generation_defaults(str(tmp_path), tmp_path / "other")["top_p"] == 0.9
    assert generation_defaults("auto", tmp_path / "model.gguf") == {}
    file.write_text('{"do_sample": false, "temperature": 0.6}')
    assert generation_defaults("auto", tmp_path) == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"top_p": 7}', "top_p must be"),
        ('{"temperature": "hot"}', "temperature"),
        ("[]", "must hold a JSON object"),
        ("{", "is no JSON"),
    ],
)
def test_sampling_options_that_cannot_be_are_refused_at_the_start(tmp_path, text, message):
    (tmp_path / "generation_config.json").write_text(text)

    with pytest.raises(ConfigError, match=message):
        generation_defaults("auto", tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        generation_defaults(str(tmp_path / "nothing"), tmp_path)


def test_a_template_is_a_file_a_name_of_the_models_own_or_itself(tmp_path, tiny_gguf):
    file = tmp_path / "chat.jinja"
    file.write_text("from a file")
    metadata = GGUFFile(tiny_gguf).metadata
    tokenizer = Tokenizer.from_gguf(metadata)
    own = tokenizer.template.source()

    sources = [templated(given, tokenizer) for given in (str(file), "default", "{{ 1 }}", None)]

    assert [one.template.source() for one in sources] == ["from a file", own, "{{ 1 }}", own]


def test_a_template_that_there_is_not_is_refused(tiny_gguf):
    tokenizer = Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)

    with pytest.raises(ConfigError, match=r"--chat-template 'other' is no file.*\(default\)"):
        templated("other", tokenizer)


@pytest.mark.parametrize(
    ("flag", "rows"),
    [("tool-call-parser", TOOL_FORMATS), ("reasoning-parser", REASONING_FORMATS)],
)
def test_every_format_can_be_named(flag, rows):
    assert FLAGS[flag].choices == (AUTO, NONE, *rows)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="another system's sockets")
@pytest.mark.parametrize(("seconds", "asked", "given_up"), [(60.0, 1, 60_000), (0.0, 0, 0)])
def test_a_client_that_vanishes_without_a_word_is_noticed_by_the_system(seconds, asked, given_up):
    with listen("127.0.0.1", 0) as server:
        notice_vanished(server, seconds)
        with socket.create_connection(server.getsockname()), server.accept()[0] as line:
            assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == asked
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == given_up
            if seconds:
                idle, every, times = (
                    line.getsockopt(socket.IPPROTO_TCP, option)
                    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                )
                assert idle + every * times == seconds


@pytest.mark.parametrize("kept", [True, False], ids=["a file", "no room for a file"])
def test_a_start_that_nobody_foresaw_to_fail_is_one_line_and_a_file(
    monkeypatch, capsys, tmp_path, kept
):
    async def start(core):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ProcessCore, "start", start)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path if kept else tmp_path / "nowhere"))
    shape = ["--load-format", "dummy", "--shape", "llama-3.1-8b", "--device", "cpu", "--port", "0"]

    assert run(["serve", *shape, "--num-gpu-blocks-override", "10"]) == 1

    told = [line for line in capsys.readouterr().err.splitlines() if "octavo: error" in line]
    assert len(told) == 1
    assert "RuntimeError: can't start new thread" in told[0]
    files = list(tmp_path.glob("octavo-serve-*.log"))
    assert len(files) == kept
    if kept:
        assert told[0].endswith(str(files[0]))
        assert "Traceback" in files[0].read_text()


def test_an_engine_that_ends_while_it_starts_is_no_bad_input(monkeypatch, capsys):
    async def start(core):
        raise EngineGone("the engine's process ended (signal 9: SIGKILL)")

    monkeypatch.setattr(ProcessCore, "start", start)
    shape = ["--load-format", "dummy", "--shape", "llama-3.1-8b", "--device", "cpu", "--port", "0"]

    assert run(["serve", *shape, "--num-gpu-blocks-override", "10"]) == 1

    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "octavo: error: the engine's process ended (signal 9: SIGKILL)"
