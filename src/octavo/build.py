"""The one place where settings become objects: tables of named parts, and `build_engine`.

What the weights can be packed without is imported late, while they are packed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.background import InBackground
from octavo.config import EngineConfig
from octavo.errors import ConfigError, ModelError
from octavo.executors.choice import StartsEarly, named
from octavo.executors.pool_size import num_blocks_of
from octavo.executors.select import select_executor
from octavo.memory.eviction import hears_hints
from octavo.memory.policies.arc import Arc
from octavo.memory.policies.bonus import Bonus
from octavo.memory.policies.cost import Cost
from octavo.memory.policies.fifo import Fifo
from octavo.memory.policies.gittins import Gittins
from octavo.memory.policies.hotprefix import HotPrefix
from octavo.memory.policies.lfu import Lfu
from octavo.memory.policies.lru import Lru
from octavo.memory.policies.s3fifo import S3Fifo
from octavo.memory.reservation import RESERVATIONS
from octavo.models.catalog import CATALOG, DEFAULT_ALIAS, find, pull
from octavo.models.checkpoint import Checkpoint, open_checkpoint
from octavo.models.mapping import read_ahead
from octavo.parameters import read_setting, with_parameters, write_setting
from octavo.sched.order import ORDERS
from octavo.tenants import read_tenants

if TYPE_CHECKING:
    from octavo.contract.layout import KVLayout
    from octavo.contract.model import ModelSpec
    from octavo.contract.namespace import Namespace
    from octavo.contract.pooling import HowPooled
    from octavo.contract.retention import TenantShare
    from octavo.engine.engine import Engine
    from octavo.engine.loop import ModelRunner
    from octavo.executors.choice import Choice, Observer
    from octavo.memory.eviction import EvictionPolicy
    from octavo.memory.reservation import Reservation
    from octavo.sched.cache import Cache
    from octavo.sched.limits import Limits
    from octavo.sched.order import Order
    from octavo.text.grammars.compiler import GrammarCompiler
    from octavo.text.tokenizer import Tokenizer

Report = Callable[[str], None]

EVICTION_POLICIES: dict[str, Callable[..., EvictionPolicy]] = {
    "lru": Lru,
    "fifo": Fifo,
    "lfu": Lfu,
    "s3fifo": S3Fifo,
    "arc": Arc,
    "bonus": Bonus,
    "gittins": Gittins,
    "cost": Cost,
    "hotprefix": HotPrefix,
}
"""Which cached block goes first, by name. Parameters are keyword arguments with defaults."""

_DEFAULT_POLICY = "lru"


@dataclass(frozen=True, slots=True)
class Built:
    """An engine, and what its caller needs to know about it."""

    engine: Engine
    runner: ModelRunner
    tokenizer: Tokenizer | None
    """None: dummy weights of a model without files, or built without text."""
    spec: ModelSpec
    layout: KVLayout
    namespace: Namespace
    model_path: Path
    """Where its files are; of a shape, its name."""
    backend: str
    """The one that computes; never auto."""
    device: str
    """cpu, cuda:0, …"""
    num_blocks: int
    max_model_len: int
    longest_text: int
    """Tokens of prompt and answer that context and memory allow; a tenant's maximum may be less."""
    long_prefill_tokens: int
    """What a long prompt is given a step; 0: all of it."""
    hears_hints: bool
    """What requests say of the further use of their KV (`cache_hint`) changes anything."""
    deterministic_tiles: tuple[int, ...]
    """Row counts in which a deterministic torch executor computes; empty for all others."""

    @property
    def pooling(self) -> HowPooled | None:
        """How prompts are embedded; None: they are not."""
        return self.engine.loop.pooling

    def finish_start(self) -> None:
        """Wait for kernels that are compiled beside the first steps, if there are any.

        Until then these are slower, not wrong.
        """
        if isinstance(self.runner, StartsEarly):
            self.runner.finish_start()


def eviction_policy(
    setting: str | Mapping[str, str | int | float], what: str = "eviction_policy"
) -> Callable[[], EvictionPolicy]:
    """Return what makes the eviction policy that a setting names, with its parameters.

    setting: as in `EngineConfig`. what: the setting's name in errors. Raises ConfigError.
    """
    name, parameters = read_setting(what, write_setting(what, setting))
    row = named(what, name, EVICTION_POLICIES, group="octavo.eviction")
    return with_parameters(what, name, row, parameters)


def scheduling_policy(
    setting: str | Mapping[str, str | int | float], what: str = "scheduling_policy"
) -> Callable[[], Order]:
    """Return what makes the order of service that a setting names, with its parameters.

    setting: as in `EngineConfig`. what: the setting's name in errors. Raises ConfigError.
    """
    name, parameters = read_setting(what, write_setting(what, setting))
    row = named(what, name, ORDERS, group="octavo.orders")
    return with_parameters(what, name, row, parameters)


def pull_model(name: str, report: Report) -> Path:
    """Fetch a model by its short name, or by its Hugging Face id (organization/name)."""
    from octavo.models.hub import fetch_folder, is_hub_id

    if name not in CATALOG and is_hub_id(name):
        return fetch_folder(name, offline=False, report=report)
    return pull(name, report=report)


def resolve_model(model: str | None, *, offline: bool, report: Report) -> Path:
    """Find a model's files; what is absent is fetched unless `offline`.

    model: a path, a known name, or a Hugging Face id (organization/name). HF_HUB_OFFLINE=1 in
    the environment means offline too. Raises ModelError or FetchError.
    """
    name = DEFAULT_ALIAS if model is None else model
    found = find(name)
    if found is not None:
        return found
    from octavo.models.hub import fetch_folder, is_hub_id

    switch = os.environ.get("HF_HUB_OFFLINE", "0").lower()
    offline = offline or switch in ("1", "true", "yes", "on")
    if name not in CATALOG:
        if is_hub_id(name):
            return fetch_folder(name, offline=offline, report=report)
        return Path(name)  # opening it says what is wrong
    if offline:
        raise ModelError(
            f"model {name} is not in the cache folder and fetching is off: "
            f"run `octavo pull {name}` where there is a network, or name a file with --model"
        )
    return pull(name, report=report)


def open_model(config: EngineConfig, *, report: Report) -> Checkpoint:
    """Open what settings name: a model's files, or a shape with dummy weights.

    Raises ConfigError, ModelError or FetchError.
    """
    if config.shape is not None:
        from octavo.models.dummy import dummy_shape

        return dummy_shape(config.shape)
    path = resolve_model(config.model, offline=config.offline, report=report)
    if config.load_format == "dummy":
        from octavo.models.dummy import dummy_model

        return dummy_model(path)
    InBackground(lambda: read_ahead(path))
    return open_checkpoint(path)


def open_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """Build the tokenizer that lies beside, or inside, a checkpoint. Raises ModelError."""
    from octavo.text.tokenizer import Tokenizer

    source = checkpoint.tokenizer_source
    if source is None:
        raise ModelError(f"{checkpoint.path} is a shape without a tokenizer: name a model's folder")
    if isinstance(source, Path):
        return Tokenizer.from_folder(source)
    return Tokenizer.from_gguf(source, str(checkpoint.path))


def choose_executor(config: EngineConfig) -> Choice:
    """Choose what an engine of these settings would compute with; nothing is loaded or fetched."""
    checkpoint = open_model(replace(config, offline=True), report=_say_nothing)
    return select_executor(config, checkpoint, report=_say_nothing)


def _say_nothing(message: str) -> None:
    """Keep quiet about what the engine will report itself."""


def build_engine(
    config: EngineConfig,
    *,
    report: Report,
    on_logits: Observer | None = None,
    depth: int | None = None,
    text: bool = True,
) -> Built:
    """Build everything that an engine needs. Raises ConfigError, ModelError or FetchError.

    report: told in words what takes long. on_logits: shown the logits of every step. depth:
    steps in flight; None: as the executor is quickest. text: False: no tokenizer is opened, since
    somebody else knows text.
    """
    rule = named("reservation", config.reservation, RESERVATIONS, group="octavo.reservations")
    order = scheduling_policy(config.scheduling_policy)
    policy = eviction_policy(config.eviction_policy)
    checkpoint = open_model(config, report=report)
    for note in checkpoint.notes:
        report(note)
    executor = select_executor(config, checkpoint, report=report)
    layout = executor.layout
    longest = _max_model_len(config, checkpoint.spec)
    num_blocks = num_blocks_of(config, checkpoint, executor, longest, report=report)
    tenants = tenants_of(config, rule)
    cache, pool_tokens = build_cache(
        rule,
        layout,
        num_blocks,
        longest=longest,
        step_tokens=config.max_num_batched_tokens,
        policy=policy,
        partial_blocks=config.partial_blocks,
        tenants=tenants,
        pin_limit=config.pin_limit,
    )
    grammars = _grammars(config, checkpoint)
    runner, tiles = executor.make(num_blocks, on_logits, grammars)
    tokenizer = _tokenizer_beside(runner, checkpoint) if text else None
    from octavo.contract.namespace import Namespace
    from octavo.engine.engine import Engine
    from octavo.engine.grammars import NoGrammars
    from octavo.sched.scheduler import Scheduler

    scheduler = Scheduler(cache, order(), _limits(config, executor.device, longest, pool_tokens))
    engine = Engine(scheduler, cache, runner, tokenizer, depth=depth or executor.depth)
    engine.loop.pooling = _pooling(config, checkpoint)
    engine.loop.grammars = grammars or NoGrammars("this engine has no tokenizer: leave it out")
    if config.kv_cache_metrics:
        _follow_blocks(engine, cache, config.kv_cache_metrics_sample)
    if config.record is not None:
        _record(engine, Path(config.record), config.block_size, report=report)
    return Built(
        engine=engine,
        runner=runner,
        tokenizer=tokenizer,
        spec=checkpoint.spec,
        layout=layout,
        namespace=Namespace(model=checkpoint.identity, lossy=executor.lossy),
        model_path=checkpoint.path,
        backend=executor.backend,
        device=executor.device,
        num_blocks=num_blocks,
        max_model_len=longest,
        longest_text=min(longest, pool_tokens),
        long_prefill_tokens=config.long_prefill_tokens(executor.device),
        hears_hints=rule.tokens is None and hears_hints(policy()),
        deterministic_tiles=tiles,
    )


def _pooling(config: EngineConfig, checkpoint: Checkpoint) -> HowPooled | None:
    from octavo.executors.pooling import choose_pooling

    return choose_pooling(config, checkpoint)


def _grammars(config: EngineConfig, checkpoint: Checkpoint) -> GrammarCompiler | None:
    """Return what makes grammars over a model's vocabulary; None: it has no tokenizer.

    It opens a tokenizer of its own, once a form comes. Raises ConfigError.
    """
    from octavo.text.grammars.backend import Vocabulary
    from octavo.text.grammars.compiler import GrammarCompiler
    from octavo.text.grammars.table import GRAMMAR_BACKENDS
    from octavo.text.grammars.trial import Trial

    name = config.structured_outputs_backend
    if name == "auto":
        name = next(iter(GRAMMAR_BACKENDS))
    named("structured_outputs_backend", name, GRAMMAR_BACKENDS, "auto")
    if checkpoint.tokenizer_source is None:
        return None
    size = checkpoint.spec.vocab_size
    return GrammarCompiler(
        lambda: Vocabulary.of(open_tokenizer(checkpoint), size),
        GRAMMAR_BACKENDS,
        backend=name,
        trial=Trial,
    )


def _tokenizer_beside(runner: ModelRunner, checkpoint: Checkpoint) -> Tokenizer | None:
    """Open a model's tokenizer, if it has one, while the runner packs weights."""
    if checkpoint.tokenizer_source is None:
        return None
    try:
        return open_tokenizer(checkpoint)
    except BaseException:
        runner.close()
        raise


def _follow_blocks(engine: Engine, cache: Cache, share: float) -> None:
    """Measure how long some of the blocks stay."""
    from octavo.engine.messages import BlockTimes
    from octavo.memory.manager import KVCacheManager
    from octavo.memory.residency import Residency

    assert isinstance(cache, KVCacheManager), "regions are not shared"
    times = engine.loop.block_times = BlockTimes()
    cache.device.pool.residency = Residency(
        share, lifetime=times.lifetime.add, idle=times.idle.add, gap=times.gap.add
    )


def _record(engine: Engine, path: Path, block_size: int, *, report: Report) -> None:
    """Record the requests of an engine; one that cannot is closed."""
    from octavo.engine.recorder import Recorder

    try:
        engine.watch(Recorder(path, block_size, warn=report))
    except ConfigError:
        engine.close()
        raise


def tenants_of(config: EngineConfig, rule: Reservation) -> tuple[TenantShare, ...]:
    """Return the tenants of an engine.

    Raises ConfigError for a rule without shared blocks, if something is asked for that needs them.
    """
    assert config.tenants is None or isinstance(config.tenants, str)
    asked = {
        "tenants": config.tenants is not None,
        "pin_limit": bool(config.pin_limit),
        "kv_cache_metrics": config.kv_cache_metrics,
        "eviction_policy": config.eviction_policy != _DEFAULT_POLICY,
        # Where no text is ever found in memory, there are no hits to order for.
        "scheduling_policy": hasattr(scheduling_policy(config.scheduling_policy)(), "turns"),
    }
    for name in (name for name, given in asked.items() if given and rule.tokens is not None):
        raise ConfigError(
            f"{name} needs blocks that are shared, but reservation is {rule.name}: use on_demand, "
            f"or leave {name} out"
        )
    return read_tenants(config.tenants)


def build_cache(
    rule: Reservation,
    layout: KVLayout,
    num_blocks: int,
    *,
    longest: int,
    step_tokens: int,
    policy: Callable[[], EvictionPolicy],
    partial_blocks: bool = True,
    tenants: Iterable[TenantShare] = (),
    pin_limit: float = 0.0,
) -> tuple[Cache, int]:
    """Build the cache manager of a reservation rule; returns it and the longest text it holds.

    partial_blocks: what a text shares with the beginning of a block is copied, not computed.
    Raises ConfigError if a tenant's share holds no text at all.
    """
    from octavo.memory.groups import Groups
    from octavo.memory.manager import KVCacheManager
    from octavo.memory.regions import RegionCache
    from octavo.memory.shares import Shares
    from octavo.memory.tier import device_tier

    if rule.tokens is None:
        groups = Groups(layout.block_sizes, layout.windows, step_tokens=step_tokens)
        tenants = tuple(tenants)
        shares = Shares(num_blocks, tenants, pin_limit=pin_limit)
        least = layout.peak_blocks(2, step_tokens)
        # Where all tenants have names, nobody may ever come without one.
        named = {one.name for one in tenants} or {shares.default.name}
        for account in shares.accounts:
            if account.name in named and shares.ceiling(account) < least:
                raise ConfigError(
                    f"tenant {account.name!r} can count on {shares.ceiling(account)} of "
                    f"{num_blocks} blocks, but one sequence needs at least {least}: raise its "
                    "maximum, lower what the others are guaranteed or pin_limit, or raise "
                    "kv_cache_memory_bytes"
                )
        device = device_tier(policy, shares, groups, partial_blocks=partial_blocks)
        cache = KVCacheManager(groups, (device,))
        return cache, layout.capacity_tokens(num_blocks, step_tokens)
    if len(layout.groups) > 1:
        raise ConfigError(f"reservation {rule.name} needs a model with one KV group")
    (block_size,) = layout.block_sizes
    regions = RegionCache(rule, num_blocks, block_size=block_size, longest=longest)
    return regions, regions.longest


def _limits(config: EngineConfig, device: str, longest: int, pool_tokens: int) -> Limits:
    from octavo.sched.limits import Limits

    return Limits(
        config.max_num_seqs,
        config.max_num_batched_tokens,
        longest,
        pool_tokens,
        long_prefill_tokens=config.long_prefill_tokens(device),
        max_long_prefills=config.long_prefills(device),
    )


def _max_model_len(config: EngineConfig, spec: ModelSpec) -> int:
    if config.max_model_len is None:
        return spec.context
    if config.max_model_len > spec.context:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, but the model's context is {spec.context}: "
            "lower it"
        )
    return config.max_model_len
