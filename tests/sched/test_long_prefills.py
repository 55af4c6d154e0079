"""Long prompts get a share of each step, and what is short passes them."""

from __future__ import annotations

from octavo.contract.request import FinishReason
from octavo.testing.driver import Driver, make_request


class Named(Driver):
    """Remembers which request each sequence belongs to."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.names = {}
        plan = self.scheduler.plan

        def note(now_s):
            batch = plan(now_s)
            for piece in batch.slices if batch else ():
                self.names[piece.seq] = self.scheduler.sequence(piece.seq).request.id
            return batch

        self.scheduler.plan = note


def driver(share=8, most=1, **options):
    return Named.paged(
        300, budget=32, vocab_size=50, long_prefills=(share, most), partial_blocks=False, **options
    )


def long(number, length=60, **options):
    """A prompt that shares no prefix with another number's."""
    return make_request(
        f"long{number}", [number + 1, *range(2, length + 1)], max_tokens=4, **options
    )


def short(number, **options):
    return make_request(f"short{number}", [40 + number, 3, 4], max_tokens=4, **options)


def slices(driver, step):
    """Return {request id: tokens given} of a step."""
    names: dict[str, int] = {}
    for piece in driver.batches[step].slices:
        name = driver.names[piece.seq]
        names[name] = names.get(name, 0) + len(piece.tokens)
    return names


def test_without_a_share_a_long_prompt_takes_the_whole_step():
    one = driver(share=0)
    one.add_all([long(0), short(0)])
    one.step()

    assert slices(one, 0) == {"long0": 32}


def test_a_long_prompt_gets_its_share_and_the_rest_goes_to_others():
    one = driver(share=8)
    one.add_all([long(0), short(0), short(1)])
    one.step()

    assert slices(one, 0) == {"long0": 8, "short0": 3, "short1": 3}


def test_what_is_left_of_a_long_prompt_is_given_at_once_when_it_is_no_longer_long():
    one = driver(share=25)
    one.add(long(0))
    one.run()

    assert [slices(one, step)["long0"] for step in range(3)] == [25, 25, 10]


def test_more_long_prompts_than_may_wait_and_short_ones_pass_them():
    one = driver(share=8, most=2)
    one.add_all([long(0), long(1), long(2), short(0)])
    one.step()
    assert slices(one, 0) == {"long0": 8, "long1": 8, "short0": 3}
    assert one.scheduler.queue_lengths == (3, 1)

    one.run()
    one.check_answers()
    assert all(answer.finish is FinishReason.LENGTH for answer in one.answers.values())


def test_long_prompts_go_on_in_the_order_they_came():
    one = driver(share=8, most=1)
    one.add_all([long(number) for number in range(4)])
    one.run()

    begun = list(dict.fromkeys(name for name in one.names.values()))
    assert begun == [f"long{number}" for number in range(4)]


def test_a_stream_of_short_prompts_does_not_keep_a_long_one_out():
    one = driver(share=8, most=1, max_num_seqs=3)
    one.add_all([long(0), long(1)])
    for number in range(200):
        one.add(make_request(f"s{number}", [number % 40, number % 7, 3], max_tokens=3))
        one.step()
        if one.answers["long1", 0].finish is not None:
            return
    raise AssertionError("the second long prompt never had its turn")


def test_running_texts_get_their_tokens_beside_a_long_prompt():
    one = driver(share=8)
    one.add(make_request("talker", [5, 6], max_tokens=30))
    one.step()
    one.add(long(0, length=200))
    for _ in range(20):
        one.step()

    assert all(slices(one, step)["talker"] == 1 for step in range(1, 21))
    assert all(slices(one, step)["long0"] == 8 for step in range(1, 21))


def test_a_prompt_that_is_mostly_in_memory_is_not_long():
    one = driver(share=8, most=1)
    one.add(long(0))
    one.run()
    ran = len(one.batches)
    one.add_all([long(1), make_request("again", [1, *range(2, 61), 9], max_tokens=2)])
    one.step()

    assert slices(one, ran) == {"long1": 8, "again": 1}


def test_a_more_urgent_prompt_of_the_same_length_goes_first():
    one = driver(share=8, most=1, order="priority")
    one.add(long(0, priority=5))
    one.step()
    one.add(long(1, priority=0))
    one.step()

    assert slices(one, 1) == {"long1": 8}


def test_answers_are_the_same_whatever_the_share():
    texts = []
    for share, most in ((0, 1), (1, 1), (7, 2), (31, 3)):
        one = driver(share=share, most=most, depth=2)
        one.add_all([long(0), short(0), long(1, n=2), long(2), short(1)])
        one.run()
        one.check_answers()
        texts.append({key: answer.tokens for key, answer in one.answers.items()})

    assert all(one == texts[0] for one in texts)
