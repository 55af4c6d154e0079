"""What recording costs the engine's thread: a step in which 256 requests get a token each."""

from __future__ import annotations

from octavo.contract.request import Request, Update
from octavo.contract.sampling import SamplingParams
from octavo.engine.recorder import Recorder

REQUESTS = 256


def test_a_step_of_256_requests_is_taken_in(benchmark, tmp_path):
    recorder = Recorder(tmp_path / "traffic.jsonl", 16, print)
    params = SamplingParams(max_tokens=None)
    for number in range(REQUESTS):
        recorder.begin(Request(id=str(number), prompt=(1, 2, 3), sampling=params, seed=0))
    updates = [Update(str(number), 0, (7,)) for number in range(REQUESTS)]
    benchmark.extra_info["target_ms"] = 0.5

    def step() -> None:
        for update in updates:
            recorder.take_in(update, None)

    benchmark.pedantic(step, rounds=500)
    recorder.close()
