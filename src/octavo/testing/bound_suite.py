"""What every model runner must keep of texts that a grammar binds, whatever its model."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from octavo.contract.batch import Batch, Copy, Sample, Slice, StepResult
from octavo.contract.ids import BlockId, SeqId, StepId
from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.engine.loop import ModelRunner
from octavo.errors import RequestError
from octavo.runner.masks import Mask, Matchers
from octavo.testing.fake_grammars import FakeGrammars, FakeMatcher, allowed_tokens, fake_form

MakeBound = Callable[[Matchers], ModelRunner]

FORM, OTHER = fake_form(1), fake_form(2)


def check_bound_runner(make: MakeBound, *, vocab_size: int, block_size: int = 4) -> None:
    """Check a runner of one KV group with 16 blocks.

    make: returns a new runner that asks these matchers, each time over the same model and a memory
    of its own. block_size: tokens of a block, a multiple of 4.
    """
    check = _Check(make, vocab_size, (*(5, 1, 3, 2) * (block_size // 4), 4, 1))
    check.allowed_tokens_are_chosen_and_others_are_not_disturbed()
    check.each_text_goes_on_as_its_form_lets_it()
    check.a_hit_goes_on_as_what_was_computed()
    check.a_fork_follows_a_text_of_its_own()
    check.candidates_are_allowed_ones()
    check.an_end_comes_early_where_nothing_else_may()
    check.what_has_ended_is_forgotten()
    check.a_mask_that_fails_refuses_its_own_sample()


class _Refusing(FakeGrammars):
    """Cannot work out any mask of one form."""

    def start(self, form: StructuredOutputs) -> FakeMatcher:
        matcher = super().start(form)
        if form == OTHER:
            matcher.fill = self._refuse
        return matcher

    @staticmethod
    def _refuse(mask: Mask) -> None:
        raise RequestError("structured_outputs: too much work")


class _Check:
    def __init__(self, make: MakeBound, vocab_size: int, text: tuple[int, ...]) -> None:
        self._make = make
        self._vocab_size = vocab_size
        self._text = text
        """A block and two tokens more."""

    def allowed_tokens_are_chosen_and_others_are_not_disturbed(self) -> None:
        runner = self._make(self._grammars())
        alone = self._run(runner, 1, self._whole(0, (14, 15), None)).sampled[0]
        mixed = self._run(
            runner,
            2,
            self._whole(1, (0, 1), None),
            self._whole(2, (2, 3), FORM),
            self._whole(3, (4, 5), OTHER, temperature=1.0),
        )
        # A device may add up the logits of three rows in another order than those of one.
        assert mixed.sampled[1].token == alone.token, (
            "a bound neighbour changes what a free text gets"
        )
        for seq, form in ((2, FORM), (3, OTHER)):
            self._assert_allowed(mixed, seq, form, [])
        runner.close()

    def each_text_goes_on_as_its_form_lets_it(self) -> None:
        grammars = self._grammars()
        runner = self._make(grammars)
        output = self._go_on(runner, 0, FORM, (0, 1, 2), steps=5)
        (matcher,) = grammars.started
        assert matcher.output == output[:-1], (
            f"the text is {output}, and its matcher was told {matcher.output}"
        )
        runner.close()

    def a_hit_goes_on_as_what_was_computed(self) -> None:
        """A sequence that begins within its output is told all of it."""
        runner = self._make(self._grammars())
        output = self._go_on(runner, 0, FORM, (0, 1, 2), steps=4)
        whole = (*self._text, *output[:-1])
        again = self._slice(1, whole[-1:], len(whole) - 1, 0, (0, 1, 2), self._sample(1, FORM))
        again = msgspec.structs.replace(again, past=whole[:-1])
        batch = Batch(9, (again,), ended=(0,))
        runner.submit(batch)
        found = runner.collect().sampled[1].token
        assert found == output[-1], f"a hit goes on with {found} instead of {output[-1]}"
        runner.close()

    def a_fork_follows_a_text_of_its_own(self) -> None:
        runner = self._make(self._grammars())
        samples = tuple(self._sample(seq, FORM, temperature=1.0, seed=seq) for seq in (0, 7))
        result = self._run(runner, 1, self._slice(0, self._text, 0, 0, (0, 1), *samples))
        texts = {seq: [result.sampled[seq].token] for seq in (0, 7)}
        end = len(self._text)
        child = self._slice(7, (texts[7][0],), end, 0, (0, 2), samples[1])
        batch = Batch(
            2,
            (
                self._slice(0, (texts[0][0],), end, 2, (), samples[0]),
                msgspec.structs.replace(child, past=self._text),
            ),
            (Copy(1, 2),),
        )
        runner.submit(batch)
        after = runner.collect()
        for seq in (0, 7):
            self._assert_allowed(after, seq, FORM, texts[seq])
        runner.close()

    def candidates_are_allowed_ones(self) -> None:
        runner = self._make(self._grammars())
        params = SamplingParams(use_beam_search=True, structured_outputs=FORM)
        beam = Sample(0, 0, params, len(self._text), candidates=self._vocab_size)
        found = self._run(runner, 1, self._slice(0, self._text, 0, 0, (0, 1), beam)).candidates[0]
        allowed = allowed_tokens(FORM, [], self._vocab_size)
        assert set(found.tokens) == allowed, f"{set(found.tokens)} instead of {allowed}"
        runner.close()

    def an_end_comes_early_where_nothing_else_may(self) -> None:
        allowed = sorted(allowed_tokens(FORM, [], self._vocab_size))
        params = SamplingParams(
            temperature=0, max_tokens=None, min_tokens=5, structured_outputs=FORM
        )
        for ends, left in ((allowed, allowed), (allowed[1:], allowed[:1])):
            runner = self._make(self._grammars())
            one = Sample(0, 0, params, len(self._text), tuple(ends))
            beam = msgspec.structs.replace(one, seq=1, candidates=self._vocab_size)
            result = self._run(
                runner,
                1,
                self._slice(0, self._text, 0, 0, (0, 1), one),
                self._slice(1, self._text, 0, 0, (2, 3), beam),
            )
            assert not result.refused, f"refused where the form is complete: {result.refused}"
            found = result.sampled[0].token
            assert found in left, f"{found} comes where {left} may"
            found = result.candidates[1].tokens
            assert set(found) == set(left), f"{set(found)} are candidates where {left} may come"
            runner.close()

    def what_has_ended_is_forgotten(self) -> None:
        grammars = self._grammars()
        runner = self._make(grammars)
        self._go_on(runner, 0, FORM, (0, 1, 2), steps=3)
        runner.submit(Batch(8, (self._whole(0, (3, 4), OTHER),), ended=(0,)))
        self._assert_allowed(runner.collect(), 0, OTHER, [])
        assert len(grammars.started) == 2, "an id that came back goes on with another's matcher"
        runner.close()

    def a_mask_that_fails_refuses_its_own_sample(self) -> None:
        runner = self._make(_Refusing(self._vocab_size))
        result = self._run(runner, 1, self._whole(0, (0, 1), OTHER), self._whole(1, (2, 3), FORM))
        assert result.error is None, f"the step failed: {result.error}"
        assert set(result.refused) == {0}, f"sequence 0 alone is refused, got {result.refused}"
        assert "too much work" in result.refused[0], "the reason is that of the matcher"
        self._assert_allowed(result, 1, FORM, [])
        runner.close()

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _grammars(self) -> FakeGrammars:
        return FakeGrammars(self._vocab_size)

    def _sample(
        self,
        seq: SeqId,
        form: StructuredOutputs | None,
        *,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Sample:
        params = SamplingParams(temperature=temperature, max_tokens=None, structured_outputs=form)
        return Sample(seq, seed, params, len(self._text))

    def _whole(
        self,
        seq: SeqId,
        blocks: tuple[BlockId, ...],
        form: StructuredOutputs | None,
        *,
        temperature: float = 0.0,
    ) -> Slice:
        one = self._sample(seq, form, temperature=temperature)
        return self._slice(seq, self._text, 0, 0, blocks, one)

    @staticmethod
    def _slice(
        seq: SeqId,
        tokens: tuple[int, ...],
        start: int,
        kept: int,
        blocks: tuple[BlockId, ...],
        *samples: Sample,
    ) -> Slice:
        return Slice(seq, start, tokens, (kept,), (blocks,), samples)

    @staticmethod
    def _run(runner: ModelRunner, step: StepId, *slices: Slice) -> StepResult:
        runner.submit(Batch(step, slices))
        return runner.collect()

    def _go_on(
        self,
        runner: ModelRunner,
        seq: SeqId,
        form: StructuredOutputs,
        blocks: tuple[BlockId, ...],
        *,
        steps: int,
    ) -> list[int]:
        """Write so many tokens after the text, which are allowed; returns them."""
        output: list[int] = []
        one = self._sample(seq, form)
        piece = self._slice(seq, self._text, 0, 0, blocks, one)
        for step in range(1, steps + 1):
            result = self._run(runner, step, piece)
            self._assert_allowed(result, seq, form, output)
            output.append(result.sampled[seq].token)
            start = len(self._text) + len(output) - 1
            piece = self._slice(seq, (output[-1],), start, len(blocks), (), one)
        return output

    def _assert_allowed(
        self, result: StepResult, seq: SeqId, form: StructuredOutputs, output: list[int]
    ) -> None:
        assert result.error is None, f"the step failed: {result.error}"
        token = result.sampled[seq].token
        assert token in allowed_tokens(form, output, self._vocab_size), (
            f"sequence {seq} goes on with {token} after {output}, which its form forbids"
        )
