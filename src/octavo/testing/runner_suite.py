"""What every model runner must keep, whatever its model: structure and consistency only."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from octavo.contract.batch import Batch, Copy, Move, Place, Sample, Score, Slice, StepResult
from octavo.contract.ids import PENDING, BlockId, MoveId, SeqId, StepId
from octavo.contract.sampling import SamplingParams
from octavo.engine.loop import ModelRunner

GREEDY = SamplingParams(temperature=0, max_tokens=None)
MAX_STEPS_OF_A_MOVE = 200

Text = tuple[int, ...]
MakeRunner = Callable[[], ModelRunner]


def check_runner(
    make_runner: MakeRunner,
    *,
    make_failing: Callable[[StepId], ModelRunner] | None = None,
    block_size: int = 4,
) -> None:
    """Check a runner of one KV group with 16 blocks and a vocabulary of 8 tokens or more.

    make_runner: returns a new runner, each time over the same model and a memory of its own.
    make_failing: the same, but the device fails in the step with this number; None: not checked.
    block_size: tokens of a block, a multiple of 4.
    """
    # A block and two tokens more.
    text = (*(5, 1, 3, 2) * (block_size // 4), 4, 1)
    _results_come_in_the_order_of_submission(make_runner(), text)
    _a_third_step_in_flight_is_refused(make_runner(), text)
    _exactly_the_tokens_asked_for_are_sampled(make_runner(), text)
    _log_probabilities_come_if_asked_for(make_runner(), text)
    _candidates_come_instead_of_a_token(make_runner(), text)
    _a_beam_goes_on_from_a_fork(make_runner, text)
    _a_prompt_is_scored_target_by_target(make_runner(), text)
    _a_text_that_is_looked_back_at_goes_on(make_runner(), text)
    _a_step_without_slices_is_a_step(make_runner())
    _a_pending_token_is_the_one_being_sampled(make_runner, text)
    _chunks_change_nothing(make_runner, text)
    _a_slice_reads_what_another_writes_in_the_same_step(make_runner, text)
    _copies_run_before_the_first_write(make_runner, text)
    _blocks_of_an_ended_sequence_serve_another(make_runner, text)
    _every_move_is_reported_once(make_runner(), text)
    if make_failing is not None:
        _a_failure_is_reported_and_leaves_the_runner_usable(make_failing, text)


def _sample(*seqs: SeqId) -> tuple[Sample, ...]:
    return tuple(Sample(seq, 0, GREEDY) for seq in seqs)


def _beam(seq: SeqId, count: int) -> Sample:
    return Sample(seq, 0, SamplingParams(use_beam_search=True, max_tokens=None), candidates=count)


def _slice(
    seq: SeqId,
    tokens: tuple[int, ...],
    *,
    start: int = 0,
    kept: int = 0,
    blocks: tuple[BlockId, ...] = (),
    samples: tuple[Sample, ...] | None = None,
) -> Slice:
    return Slice(
        seq, start, tokens, (kept,), (blocks,), _sample(seq) if samples is None else samples
    )


def _run(
    runner: ModelRunner, step: StepId, *slices: Slice, copies: tuple[Copy, ...] = ()
) -> StepResult:
    runner.submit(Batch(step, slices, copies))
    return runner.collect()


def _alone(make_runner: MakeRunner, text: Text) -> int:
    """The token after a text of two blocks that is computed at once, by itself."""
    runner = make_runner()
    blocks = (0, 1)
    result = _run(runner, 1, _slice(0, text, blocks=blocks))
    runner.close()
    return result.sampled[0].token


def _results_come_in_the_order_of_submission(runner: ModelRunner, text: Text) -> None:
    runner.submit(Batch(1, (_slice(0, text, blocks=(0, 1)),)))
    runner.submit(Batch(2, (_slice(1, text, blocks=(2, 3)),)))
    results = [runner.collect(), runner.collect()]
    assert [result.step for result in results] == [1, 2], "results must come in order"
    assert [set(result.sampled) for result in results] == [{0}, {1}], "a token of another step"
    assert not any(result.error for result in results), f"a sound step failed: {results}"
    runner.close()


def _a_third_step_in_flight_is_refused(runner: ModelRunner, text: Text) -> None:
    for step in (1, 2):
        runner.submit(Batch(step, (_slice(step, text, blocks=(2 * step, 2 * step + 1)),)))
    try:
        runner.submit(Batch(3, (_slice(3, text, blocks=(0, 1)),)))
    except AssertionError:
        steps = [runner.collect().step, runner.collect().step]
        assert steps == [1, 2], "a refused step must change nothing"
        runner.close()
        return
    raise AssertionError("a third step was accepted while two wait to be collected")


def _exactly_the_tokens_asked_for_are_sampled(runner: ModelRunner, text: Text) -> None:
    result = _run(
        runner,
        1,
        _slice(0, text[:-2], blocks=(0,), samples=()),
        _slice(1, text, blocks=(1, 2)),
        _slice(2, text, blocks=(3, 4), samples=_sample(2, 7, 8)),
    )
    assert set(result.sampled) == {1, 2, 7, 8}, (
        f"sequences 1 and 2 and the forks 7 and 8 ask for a token, got {set(result.sampled)}"
    )
    same = {result.sampled[seq].token for seq in (1, 2, 7, 8)}
    assert len(same) == 1, "forks with one seed, and equal texts, must sample the same token"
    assert all(sampled.logprob <= 0 for sampled in result.sampled.values()), "a logprob above 0"
    runner.close()


def _log_probabilities_come_if_asked_for(runner: ModelRunner, text: Text) -> None:
    asked = Sample(1, 0, SamplingParams(max_tokens=None, logprobs=0))
    result = _run(
        runner,
        1,
        _slice(0, text, blocks=(0, 1)),
        _slice(1, text, blocks=(2, 3), samples=(asked,)),
    )
    assert result.sampled[0].logprobs is None, "log-probabilities that nobody asked for"
    named = result.sampled[1].logprobs
    assert named is not None, "log-probabilities were asked for"
    assert named.ids == (result.sampled[1].token,), f"the sampled token alone, got {named.ids}"
    runner.close()


def _candidates_come_instead_of_a_token(runner: ModelRunner, text: Text) -> None:
    result = _run(
        runner,
        1,
        _slice(0, text, blocks=(0, 1), samples=(_beam(0, 2),)),
        _slice(1, text, blocks=(2, 3)),
        _slice(2, text, blocks=(4, 5), samples=(_beam(2, 5),)),
    )
    assert set(result.candidates) == {0, 2}, (
        f"sequences 0 and 2 ask for candidates, got {set(result.candidates)}"
    )
    assert set(result.sampled) == {1}, "what asks for candidates gets no token"
    few, many = result.candidates[0], result.candidates[2]
    assert (len(few.tokens), len(many.tokens)) == (2, 5), "as many candidates as are asked for"
    assert len(set(many.tokens)) == 5, f"a token twice among {many.tokens}"
    ranked = sorted(zip([-value for value in many.logprobs], many.tokens, strict=True))
    assert [token for _, token in ranked] == list(many.tokens), (
        f"candidates come best first, ties by ascending id, got {many}"
    )
    assert few.tokens == many.tokens[:2], "fewer candidates of one text must be the first of more"
    runner.close()


def _a_beam_goes_on_from_a_fork(make_runner: MakeRunner, text: Text) -> None:
    """A beam branches: a new sequence is told its text and goes on with a token of its own."""
    params = SamplingParams(use_beam_search=True, max_tokens=None, repetition_penalty=2.0)

    def beam(seq: SeqId) -> tuple[Sample, ...]:
        return (Sample(seq, 0, params, len(text), candidates=3),)

    runner = make_runner()
    _run(runner, 1, _slice(0, text, blocks=(0, 1), samples=beam(0)))
    branch = _slice(7, (3,), start=len(text), blocks=(0, 2), samples=beam(7))
    result = _run(
        runner,
        2,
        _slice(0, (2,), start=len(text), kept=2, samples=beam(0)),
        msgspec.structs.replace(branch, past=text),
        copies=(Copy(1, 2),),
    )
    for seq, token in ((0, 2), (7, 3)):
        alone = make_runner()
        whole = _slice(seq, (*text, token), blocks=(0, 1), samples=beam(seq))
        truth = _run(alone, 1, whole).candidates[seq]
        alone.close()
        assert result.candidates[seq].tokens == truth.tokens, f"beam {seq} read another text"
    runner.close()


def _a_prompt_is_scored_target_by_target(runner: ModelRunner, text: Text) -> None:
    first = _slice(0, text[:-2], blocks=(0,), samples=())
    first = msgspec.structs.replace(first, score=Score(0, text[1:-1], 0))
    last = _slice(0, text[-2:], start=len(text) - 2, kept=1, blocks=(1,))
    last = msgspec.structs.replace(last, score=Score(0, text[-1:], 0))
    results = [_run(runner, 1, first, _slice(1, text, blocks=(2, 3))), _run(runner, 2, last)]
    for result, targets in zip(results, (text[1:-1], text[-1:]), strict=True):
        assert set(result.scored) == {0}, f"one slice asked for scores, got {set(result.scored)}"
        got = [one.ids for one in result.scored[0]]
        assert got == [(target,) for target in targets], f"targets {targets}, got {got}"
    assert set(results[0].sampled) == {1}, "a scored slice samples only if it says so"
    assert set(results[1].sampled) == {0}, "a scored slice may sample too"
    runner.close()


def _a_text_that_is_looked_back_at_goes_on(runner: ModelRunner, text: Text) -> None:
    """A sequence that begins with a prefix hit is told the text before it once."""
    _run(runner, 1, _slice(0, text, blocks=(0, 1)))
    back = SamplingParams(temperature=0, max_tokens=None, repetition_penalty=2.0)
    samples = (Sample(1, 0, back, len(text)),)
    hit = _slice(1, text[-2:], start=len(text) - 2, blocks=(0, 2), samples=samples)
    found = _run(runner, 2, msgspec.structs.replace(hit, past=text[:-2]))
    whole = _slice(2, text, blocks=(3, 4), samples=(Sample(2, 0, back, len(text)),))
    computed = _run(runner, 3, whole)
    assert found.sampled[1].token == computed.sampled[2].token, "a hit's past must count"
    going_on = _slice(1, (PENDING,), start=len(text), kept=2, samples=samples)
    assert set(_run(runner, 4, going_on).sampled) == {1}, "it goes on without being told again"
    runner.close()


def _a_step_without_slices_is_a_step(runner: ModelRunner) -> None:
    result = _run(runner, 1)
    assert (result.step, result.sampled, result.error) == (1, {}, None), f"no work gave {result}"
    runner.close()


def _a_pending_token_is_the_one_being_sampled(make_runner: MakeRunner, text: Text) -> None:
    runner = make_runner()
    runner.submit(Batch(1, (_slice(0, text, blocks=(0, 1), samples=_sample(0, 9)),)))
    fork = _slice(9, (PENDING,), start=len(text), blocks=(0, 2))
    runner.submit(
        Batch(2, (_slice(0, (PENDING,), start=len(text), kept=2), fork), copies=(Copy(1, 2),))
    )
    first = runner.collect().sampled[0].token
    second = runner.collect().sampled
    truth = _alone(make_runner, (*text, first))
    assert second[0].token == truth, "PENDING is not the token that the step before has sampled"
    assert second[9].token == truth, "PENDING of a fork is not the token sampled for the fork"
    runner.close()


def _chunks_change_nothing(make_runner: MakeRunner, text: Text) -> None:
    runner = make_runner()
    _run(runner, 1, _slice(0, text[:3], blocks=(0,), samples=()))
    result = _run(runner, 2, _slice(0, text[3:], start=3, kept=1, blocks=(1,)))
    assert result.sampled[0].token == _alone(make_runner, text), "a prompt in two chunks differs"
    runner.close()


def _a_slice_reads_what_another_writes_in_the_same_step(
    make_runner: MakeRunner, text: Text
) -> None:
    runner = make_runner()
    follower = (*text[:-2], 2, 2)
    result = _run(
        runner,
        1,
        _slice(0, text, blocks=(0, 1)),
        _slice(1, follower[-2:], start=len(text) - 2, blocks=(0, 2)),
    )
    assert result.sampled[1].token == _alone(make_runner, follower), (
        "a slice must read the blocks that another slice of its step writes"
    )
    runner.close()


def _copies_run_before_the_first_write(make_runner: MakeRunner, text: Text) -> None:
    runner = make_runner()
    _run(runner, 1, _slice(0, text, blocks=(0, 1), samples=_sample(0, 1)))
    result = _run(
        runner,
        2,
        _slice(0, (2,), start=len(text), kept=2),
        _slice(1, (3,), start=len(text), blocks=(0, 2)),
        copies=(Copy(1, 2),),
    )
    for seq, token in ((0, 2), (1, 3)):
        assert result.sampled[seq].token == _alone(make_runner, (*text, token)), (
            f"sequence {seq} does not go on from its own copy of the shared block"
        )
    later = _run(
        runner,
        3,
        _slice(0, (4,), start=len(text) + 1, kept=2),
        _slice(1, (4,), start=len(text) + 1, kept=1, blocks=(3,)),
        copies=(Copy(2, 3),),
    )
    assert later.sampled[1].token == _alone(make_runner, (*text, 3, 4)), (
        "a table of which one block is kept must go on with the block that replaces the other"
    )
    runner.close()


def _blocks_of_an_ended_sequence_serve_another(make_runner: MakeRunner, text: Text) -> None:
    runner = make_runner()
    _run(runner, 1, _slice(0, text, blocks=(0, 1)))
    other = (*[2 + i // 2 % 2 for i in range(len(text) - 2)], 1)
    runner.submit(Batch(2, (_slice(1, other, blocks=(1, 0)),), ended=(0,)))
    result = runner.collect()
    assert result.sampled[1].token == _alone(make_runner, other), "an ended sequence shines through"
    runner.close()


def _every_move_is_reported_once(runner: ModelRunner, text: Text) -> None:
    _run(runner, 1, _slice(0, (*text, 1, 1), blocks=(0, 1)))
    moves = tuple(
        Move(i + 1, bytes([i]) * 16, Place("device", i), Place("host", i)) for i in range(2)
    )
    runner.submit(Batch(2, moves=moves))
    reported: list[MoveId] = []
    for step in range(3, MAX_STEPS_OF_A_MOVE):
        result = runner.collect()
        reported += [*result.moved, *result.failed]
        assert result.error is None, f"a move that fails is no error of the step: {result}"
        if len(reported) >= len(moves):
            break
        runner.submit(Batch(step))
    assert sorted(reported) == [1, 2], f"moves 1 and 2 must be reported once each, got {reported}"
    runner.close()


def _a_failure_is_reported_and_leaves_the_runner_usable(
    make_failing: Callable[[StepId], ModelRunner], text: Text
) -> None:
    runner = make_failing(2)
    first = _run(runner, 1, _slice(0, text, blocks=(0, 1)))
    assert first.error is None, "only step 2 is to fail"
    failed = _run(runner, 2, _slice(0, (1,), start=len(text), kept=2))
    assert (failed.step, failed.sampled) == (2, {}), f"a failed step must sample nothing: {failed}"
    assert failed.error, "a step that failed must say so in its result"
    runner.submit(Batch(3, (_slice(1, text, blocks=(0, 1)),), ended=(0,)))
    again = runner.collect()
    assert again.error is None, f"the step after a failed one failed too: {again.error}"
    assert again.sampled[1].token == first.sampled[0].token, "a failure has left its mark"
    runner.close()
