"""What `octavo bench serve` does between its command line and its report."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec

from octavo.bench.serve.datasets import (
    Lengths,
    Repetition,
    TraceRequest,
    random_asks,
    read_agents,
    read_custom,
    read_sharegpt,
    repetition_asks,
    sharegpt_like_asks,
    trace_asks,
)
from octavo.bench.serve.http import Address, Client, read_address
from octavo.bench.serve.load import Chain, Pace, Run, run_load
from octavo.bench.serve.report import Wanted, read_goodput, summarize
from octavo.bench.serve.site import Site, cache_counts, empty_cache, look_at
from octavo.bench.serve.stream import Ask, Outcome, Sender
from octavo.cli.output import note
from octavo.errors import ConfigError
from octavo.progress import work_bar

_CACHES = ("empty", "vary", "keep")
_FIRST_LINE_TOKENS = 64
"""Room that is left for the line that varies, and for a chat's template."""
_LONGEST = 2048
"""Of a prompt with its answer, where the server does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A load, as the command line has it."""

    given: SimpleNamespace
    """All options by their names."""
    address: Address
    pace: Pace
    wanted: Wanted
    lengths: Lengths
    repetition: Repetition
    cache: str
    options: dict[str, object]
    """Further fields of every request."""

    @classmethod
    def read(cls, given: SimpleNamespace) -> Work:
        """Check all options. Raises ConfigError."""
        url = given.base_url or f"http://{given.host}:{given.port}"
        for name, least in (("num_prompts", 1), ("num_warmups", 0), ("output_len", 1)):
            value = getattr(given, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}: {value}")
        if not given.trace_speed > 0 or not given.timeout > 0:
            raise ConfigError("--trace-speed and --timeout must be above 0")
        return cls(
            given=given,
            address=read_address(url, _headers(given), verify=not given.insecure),
            pace=Pace(
                rate_per_s=given.request_rate,
                burstiness=given.burstiness,
                max_concurrency=given.max_concurrency,
                recorded=given.dataset_name == "trace",
                seed=given.seed,
            ),
            wanted=Wanted(
                metrics=tuple(_names(given.percentile_metrics)),
                percentiles=_percentiles(given.metric_percentiles),
                goodput=read_goodput(given.goodput),
            ),
            lengths=Lengths(
                input=given.random_input_len,
                output=given.random_output_len,
                range_ratio=given.random_range_ratio,
                prefix=given.random_prefix_len,
            ),
            repetition=Repetition(
                prefix=given.prefix_repetition_prefix_len,
                suffix=given.prefix_repetition_suffix_len,
                prefixes=given.prefix_repetition_num_prefixes,
                output=given.prefix_repetition_output_len,
            ),
            cache=_cache(given.cache, given.admin_api_key),
            options=_options(given),
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    figures: dict[str, object]
    run: Run


async def measure(work: Work, users: list[int | None]) -> list[Measured]:
    """Run the load once for each number of users; None: as many as come."""
    given = work.given
    allow_many_files()
    client = Client(work.address)
    try:
        site = await look_at(client, given.model)
        if site.by_id:
            if not _drawn(given):
                raise ConfigError(
                    f"--dataset-name {given.dataset_name} holds texts, and the server has no "
                    "tokenizer: give random, prefix-repetition, trace, or sharegpt without a file"
                )
            note("octavo: the server has no tokenizer: prompts and answers are token ids")
        elif not site.words.exact and given.dataset_name != "custom":
            note(
                "octavo: the server does not tell its tokens, so lengths of prompts are estimated; "
                "what is reported is what it counts"
            )
        sender = Sender(
            client,
            site.model,
            backend=given.backend,
            endpoint=given.endpoint,
            options=work.options,
            by_id=site.by_id,
            timeout_s=given.timeout,
        )
        total = len(users) * sum(map(len, _chains(work, site)))
        with work_bar("requests", total) as advance:
            return [
                await _run(work, client, site, sender, count, lambda _: advance(1))
                for count in users
            ]
    finally:
        client.close()


async def _run(
    work: Work,
    client: Client,
    site: Site,
    sender: Sender,
    users: int | None,
    ended: Callable[[Outcome], None],
) -> Measured:
    pace = replace(work.pace, max_concurrency=users)
    first_line = ""
    if work.cache == "vary":
        # Drawn prompts get other words; what is read from a file, a line in front.
        if _drawn(work.given):
            site = replace(site, words=site.words.shuffled(site.new_first_line()))
        else:
            first_line = site.new_first_line()
    chains = _chains(work, site)
    for number in range(work.given.num_warmups):
        await sender.send(chains[number % len(chains)][0], site.new_first_line())
    if work.cache == "empty":
        await empty_cache(client, work.given.admin_api_key)

    async def send(ask: Ask) -> Outcome:
        return await sender.send(ask, first_line)

    before = await cache_counts(client)
    run = await run_load(chains, send, pace, ended=ended)
    after = await cache_counts(client)
    counted = (after[0] - before[0], after[1] - before[1]) if before and after else None
    figures = summarize(run, work.wanted, pace=pace, counted=counted)
    names: dict[str, object] = {"backend": work.given.backend, "model_id": site.model}
    names |= {"cache": work.cache, "prompts": "token ids" if site.by_id else "text"}
    return Measured(names | figures, run)


# ── the data sets ─────────────────────────────────────────────────────────────────────────────


def _chains(work: Work, site: Site) -> list[Chain]:
    """Return what is asked. Raises ConfigError."""
    given, words = work.given, site.words
    name, count, seed = given.dataset_name, given.num_prompts, given.seed
    longest = (site.max_model_len or _LONGEST) - _FIRST_LINE_TOKENS
    if name == "random":
        return random_asks(words, count, work.lengths, seed)
    if name == "prefix-repetition":
        return repetition_asks(words, count, work.repetition, seed)
    if name == "sharegpt":
        if given.dataset_path is None:
            return sharegpt_like_asks(words, count, longest, seed, given.output_len)
        return read_sharegpt(given.dataset_path, count, given.output_len, seed)
    if name == "custom":
        return read_custom(_path(given), count, given.output_len)
    if name == "agents":
        return read_agents(_path(given), count, given.output_len, longest)
    if name == "trace":
        return _trace(work, site, longest)
    raise ConfigError(
        f"--dataset-name {name!r} is not one of random, sharegpt, prefix-repetition, agents, "
        "trace, custom"
    )


def _drawn(given: SimpleNamespace) -> bool:
    """Say whether prompts are drawn from words, even if lengths and times are read."""
    return given.dataset_name in ("random", "prefix-repetition", "trace") or (
        given.dataset_name == "sharegpt" and given.dataset_path is None
    )


def _path(given: SimpleNamespace) -> Path:
    if given.dataset_path is None:
        raise ConfigError(f"--dataset-name {given.dataset_name} needs --dataset-path")
    return given.dataset_path


def _trace(work: Work, site: Site, longest: int) -> list[Chain]:
    from octavo.replay.files import open_trace
    from octavo.replay.formats import TRANSCRIPT, find_format

    given = work.given
    path = _path(given)
    file = open_trace(path)
    found = find_format(file)
    if found.name == TRANSCRIPT:
        raise ConfigError(f"{path} holds texts: give --dataset-name agents")
    trace = found.read(file, None, _no_tokenizer).at_rate(given.trace_speed)
    requests = [
        TraceRequest(
            time_s=one.time_s,
            prompt_tokens=one.prompt_tokens,
            output_tokens=given.output_len or one.output_tokens,
            keys=one.keys,
        )
        for one in trace.requests[: given.num_prompts]
    ]
    chains, left_out = trace_asks(
        site.words, requests, trace.block_size, longest=longest, seed=given.seed
    )
    if left_out:
        note(f"octavo: {left_out} requests of more than {longest} tokens are left out")
    if not chains:
        raise ConfigError(f"{path} has no request of at most {longest} tokens")
    return chains


def _no_tokenizer() -> Callable[[str], list[int]]:
    raise AssertionError("transcripts were refused before")


# ── options ───────────────────────────────────────────────────────────────────────────────────


def _headers(given: SimpleNamespace) -> dict[str, str]:
    key = given.api_key or os.environ.get("OPENAI_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    for text in given.header:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"--header must be name=value, got {text!r}")
        headers[name.strip().lower()] = value
    return headers


def _cache(name: str | None, admin_key: str | None) -> str:
    if name is None:
        return "empty" if admin_key else "vary"
    if name not in _CACHES:
        raise ConfigError(f"--cache {name!r} is not one of {', '.join(_CACHES)}")
    if name == "empty" and not admin_key:
        raise ConfigError("--cache empty needs --admin-api-key")
    return name


def _options(given: SimpleNamespace) -> dict[str, object]:
    found: dict[str, object] = {"temperature": given.temperature}
    if given.ignore_eos:
        found["ignore_eos"] = True
    if given.extra_body is not None:
        try:
            found |= msgspec.json.decode(given.extra_body, type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise ConfigError(f"--extra-body is no JSON object: {error}") from None
    return found


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--metric-percentiles must be numbers separated by commas, got {text!r}"
        ) from None


def allow_many_files() -> None:
    """Let this process have as many connections as the system lets it."""
    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
