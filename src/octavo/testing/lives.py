"""Random lives of the deciding plane: one seed, one life, everything checked after each step.

Complements the state machines: no shrinking, but thousands of dense lives a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from octavo.contract.batch import Batch, Sample
from octavo.contract.hint import CacheHint, Word
from octavo.contract.pooling import HowPooled, Pooling
from octavo.contract.request import Request
from octavo.contract.retention import DEFAULT_TENANT, Retention, TenantShare
from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.policies.lru import Lru
from octavo.sched.limits import Limits
from octavo.testing.driver import Driver, make_regions, make_request
from octavo.testing.fake_grammars import fake_form
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.watcher import Watcher

VOCAB = 12
_BLOCK_SIZES = ((4,), (1,), (4, 8), (6, 4), (3, 3, 3), (2,))
_WINDOWS = (None, None, 2, 3, 5, 16)
_PREFIXES = ([1] * 9, [1] * 17, [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4], [5], [11, 10, 9] * 8)


def random_hints(draw: Random) -> tuple[CacheHint, ...]:
    """Draw what a request says of its KV; often nothing."""
    ends = [*sorted(draw.sample(range(1, 40), draw.choice((0, 0, 1, 2)))), None]
    ends = ends[: len(ends) - draw.choice((0, 1))]
    says: tuple[Word | float, ...] = ("continues", "closed", "shared", 0.0, 0.5, 0.97)
    return tuple(
        CacheHint(draw.choice(says), end, draw.choice(("", "one", "other"))) for end in ends
    )


class Life:
    """Requests with common prefixes come and go while steps fail and moves come late.

    Asserts after every action that the counts add up and that every text so far is right; at
    the end, that every request was answered and every block came back.
    """

    def __init__(
        self,
        seed: int,
        *,
        rule: str = "on_demand",
        policy: Callable[[], EvictionPolicy] = Lru,
        tenants: bool = False,
        order: str | None = None,
    ) -> None:
        """tenants: some of them have shares, and requests pin and keep. order: None: drawn."""
        self.tenants = [DEFAULT_TENANT]
        self.retains = tenants
        self.scores = seed % 2 == 0
        self.averages = False
        """The mean of some prompt's states was asked for: all of it is computed in any case."""
        self.random = Random(seed)
        self.forms = Random(~seed)
        self.looks = Random(seed ^ 0x5EE)
        draw = self.random
        self.sizes = draw.choice(_BLOCK_SIZES) if rule == "on_demand" else (4,)
        self.windows = tuple(draw.choice(_WINDOWS) for _ in self.sizes)
        self.blocks = draw.randint(2 * len(self.sizes), 26 * len(self.sizes))
        self.failure = draw.choice((0.0, 0.0, 0.05, 0.2))
        self.quiet = False
        self.count = 0
        """Requests made so far, refused ones too."""
        self.dropped: set[str] = set()
        self.paused: set[str] = set()
        """Requests of which something has been paused at some time."""
        depth, drawn = draw.choice((1, 2, 2)), draw.choice(("fcfs", "priority"))
        order = order or drawn
        limits = (draw.choice((1, 2, 5, 9)), draw.choice((1, 4, 9, 16, 64)))
        if rule == "on_demand":
            self.driver = Driver.paged(
                self.blocks,
                self.sizes,
                windows=self.windows,
                depth=depth,
                order=order,
                max_num_seqs=limits[0],
                budget=limits[1],
                host_blocks=draw.choice((0, 6, 40)),
                fate=self._fate,
                refusal=self._refusal,
                random=draw,
                move_failure=draw.choice((0.0, 0.1, 0.5)),
                vocab_size=VOCAB,
                long_prefills=draw.choice(((0, 1), (0, 1), (2, 1), (5, 2))),
                policy=policy,
                partial_blocks=draw.random() < 0.8,
                tenants=self._tenants() if tenants else (),
                pin_limit=draw.choice((0.0, 0.2, 0.5)) if tenants else 0.0,
            )
        else:
            self.driver = self._contiguous(rule, depth, order, limits)

    def live(self, actions: int = 60) -> None:
        """Act at random, then let everything come to its end."""
        watcher = Watcher(self.driver.scheduler, self.driver.cache)
        watches = self.looks.random() < 0.25
        for _ in range(actions):
            self._act()
            self.driver.cache.check()
            if watches and self.looks.random() < 0.4:
                watcher.check(self.driver.now_s)
            self.driver.check_answers()
            self._every_prompt_token_is_counted_once()
        self.quiet = True
        self._nobody_waits_for_paused_ones()
        for request_id, index in self.driver.answers:
            self.driver.scheduler.resume(request_id, index)
        self.driver.run()
        while self.driver.cache.open_moves:
            self.driver.step()
        self.driver.check_answers()
        self.driver.cache.check()
        assert self.driver.cache.usage().blocks_used == 0, "blocks are held at the end"
        for (request_id, _), answer in self.driver.answers.items():
            assert answer.finish is not None or request_id in self.dropped, "no answer"

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _every_prompt_token_is_counted_once(self) -> None:
        """Assert that it was found, or missed, or had to be computed in any case."""
        stats = self.driver.scheduler.stats
        assert min(stats.missed_tokens.values(), default=0) >= 0, f"{stats.missed_tokens}"
        known = stats.prefix_hit_tokens + sum(stats.missed_tokens.values())
        rest = stats.prefix_query_tokens - known
        if self.driver.cache.shares:  # else nothing is looked for
            least = stats.prefix_queries
            right = rest >= least if self.scores or self.averages else rest == least
            assert right, f"{rest} tokens neither found nor missed, by {least} prompts"

    def _nobody_waits_for_paused_ones(self) -> None:
        """Assert that all others are answered; a fixed batch alone waits for its slowest."""
        if not self.driver.cache.shares:
            return
        waiting: list[str] = []
        for _ in range(10_000):
            waiting = [
                request_id
                for (request_id, _), answer in self.driver.answers.items()
                if answer.finish is None and request_id not in self.dropped | self.paused
            ]
            if not waiting:
                return
            self.driver.step()
        raise AssertionError(f"{waiting} wait for a paused request")

    def _tenants(self) -> list[TenantShare]:
        """Draw the shares of two or three tenants."""
        draw = self.random
        shares = [
            TenantShare(name, draw.choice((0.0, 0.1, 0.3)), draw.choice((0.4, 0.7, 1.0)))
            for name in ("a", "b", DEFAULT_TENANT)[: draw.choice((1, 2, 3))]
        ]
        self.tenants += [share.name for share in shares]
        return shares

    def _retention(self, length: int) -> tuple[Retention, ...]:
        """Draw what a request asks for of a prompt of so many tokens."""
        draw = self.random
        if not self.retains or draw.random() < 0.5:
            return ()
        middle = draw.randint(1, length)
        whole = Retention(
            end=draw.choice((None, middle, length + 4)),
            priority=draw.choice((0, 35, 80)),
            ttl_s=draw.choice((None, 3, 20)),
            pin=draw.choice((None, None, "x", "y")),
        )
        if whole.end != middle or middle == length:
            return (whole,)
        priority = draw.choice((10, 90))
        return (whole, Retention(middle, priority=priority, ttl_s=5, pin=whole.pin))

    def _contiguous(self, rule: str, depth: int, order: str, limits: tuple[int, int]) -> Driver:
        longest = min(32, 4 * (1 << (self.blocks.bit_length() - 1)))
        cache = make_regions(rule, self.blocks, longest=longest)
        bounds = Limits(limits[0], limits[1], 10_000, longest)
        driver = Driver(cache, limits=bounds, order=order, depth=depth)
        driver.runner = FakeRunner(
            (4,), vocab_size=VOCAB, text=driver.text, fate=self._fate, random=self.random
        )
        return driver

    def _fate(self, batch: Batch) -> str | None:
        fails = not self.quiet and self.random.random() < self.failure
        return "the device caught fire" if fails and batch.slices else None

    def _refusal(self, sample: Sample, position: int) -> str | None:
        fails = not self.quiet and self.random.random() < self.failure / 20
        return "every token is banned" if fails else None

    def _act(self) -> None:
        draw = self.random
        what = draw.random()
        if what < 0.25:
            self._call(draw.choice((1, 1, 2, 4)))
        elif what < 0.30 and self.driver.requests:
            request_id = draw.choice(sorted(self.driver.requests))
            self.dropped.add(request_id)
            self.driver.scheduler.abort(request_id)
        elif what < 0.33 and self.driver.requests:
            request_id = draw.choice(sorted(self.driver.requests))
            self.dropped.add(request_id)
            self.driver.scheduler.finish(request_id, draw.randint(0, 2))
        elif what < 0.35:
            self.driver.scheduler.clear_cache()
        elif what < 0.39 and self.driver.requests:
            change = draw.choice((self.driver.scheduler.pause, self.driver.scheduler.resume))
            request_id = draw.choice(sorted(self.driver.requests))
            self.paused.add(request_id)
            change(request_id, draw.randint(0, 2))
        elif what < 0.41 and self.retains:
            name, tenant = draw.choice((None, "x", "y")), draw.choice((None, *self.tenants))
            self.driver.scheduler.unpin(tenant, name)
        else:
            self.driver.step()

    def _form(self) -> StructuredOutputs | None:
        """Draw what an answer is held to, from numbers of its own."""
        return fake_form(self.forms.randint(0, 3)) if self.forms.random() < 0.15 else None

    def _search(self) -> dict[str, Any]:
        """Draw the options of a beam search."""
        return {
            "use_beam_search": True,
            "beam_width": self.random.choice((1, 2, 4)),
            "length_penalty": self.random.choice((-1.0, 0.0, 1.0, 2.0)),
            "early_stopping": self.random.choice((True, False, "never")),
        }

    def _call(self, prompts: int) -> None:
        """Make requests; some are one call, of which nothing stays if one is refused."""
        together = self.count % 2 == 0
        made: list[str] = []
        for _ in range(prompts):
            request = self._request()
            try:
                self.driver.add(request)
                made.append(request.id)
            except RequestError:
                if together:
                    break
        else:
            return
        self.dropped.update(made)
        for request_id in made:
            self.driver.scheduler.withdraw(request_id)

    def _embedding(self, prompt: list[int]) -> Request:
        """Draw a request for the vector of a prompt."""
        draw = self.random
        how: HowPooled = "mean" if draw.random() < 0.5 else "last"
        self.averages |= how == "mean"
        return make_request(
            f"r{self.count}",
            prompt,
            max_tokens=1,
            priority=draw.randint(0, 2),
            salt=draw.choice(("", "", "", "tenant")),
            tenant=draw.choice(self.tenants) if self.retains else DEFAULT_TENANT,
            retention=self._retention(len(prompt)),
            pooling=Pooling(how),
        )

    def _request(self) -> Request:
        draw = self.random
        self.count += 1
        prefix = draw.choice(_PREFIXES)[: draw.choice((4, 8, 30))]
        tail = [draw.randrange(VOCAB) for _ in range(draw.choice((0, 0, 1, 3, 9)))]
        if draw.random() < 0.15:
            return self._embedding(prefix + tail)
        beams = self.driver.cache.shares and draw.random() < 0.3
        search = self._search() if beams else {}
        return make_request(
            f"r{self.count}",
            prefix + tail,
            n=1 if beams else draw.choice((1, 1, 1, 2, 4)),
            max_tokens=draw.choice((1, 2, 7, 20)),
            priority=draw.randint(0, 2),
            eos=draw.random() < 0.5,
            seed=draw.randint(0, 2),
            salt=draw.choice(("", "", "", "tenant")),
            bad_words=draw.choice(((), (), ((1, 2),))),
            cache_hints=random_hints(draw),
            presence_penalty=draw.choice((0.0, 0.0, 1.0)),
            logprobs=None if beams else draw.choice((None, None, 0)),
            prompt_logprobs=draw.choice((None, None, 0)) if self.scores else None,
            structured_outputs=self._form(),
            tenant=draw.choice(self.tenants) if self.retains else DEFAULT_TENANT,
            retention=self._retention(len(prefix + tail)),
            **search,
        )
