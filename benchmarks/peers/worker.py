"""One engine behind a pipe: `python worker.py ENGINE`, in the environment of that engine.

Reads one JSON document a line, answers each with one:

    {"model": PATH, "threads": N, …}                      {"engine": NAME AND VERSION}
    {"requests": [[IDS, TOKENS], …], "shared_prefix": …}  {"seconds": S}

and ends when its input does. Only the engine's own work is timed: building requests that it takes
apart itself, computing, and handing back the tokens. Answers are greedy and of exactly the length
asked for, and nothing is kept from one run to the next. Needs the standard library and the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

CACHE_GIB = 2
"""KV memory of every engine that takes a size."""
SEQUENCES = 256
"""Sequences that run at once, where an engine bounds them."""
STEP_TOKENS = 2048
LONGEST = 2048
"""Longest text, where an engine wants to know."""


class Octavo:
    """Scheduler, sampler and detokenizer included, as a program calls it."""

    def __init__(self, settings):
        import octavo

        self.name = f"octavo {octavo.__version__}"
        self._params = octavo.SamplingParams
        self._llm = octavo.LLM(
            settings["model"],
            backend="cpu",
            threads=settings["threads"],
            cpu_arithmetic=settings.get("cpu_arithmetic"),
            kv_cache_memory_bytes=CACHE_GIB << 30,
            max_num_seqs=SEQUENCES,
            max_num_batched_tokens=STEP_TOKENS,
            max_model_len=settings.get("longest", LONGEST),
            offline=True,
        )

    def run(self, requests, shared_prefix):
        self._llm.reset_prefix_cache()
        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        params = [self._params(temperature=0, max_tokens=n, ignore_eos=True) for _, n in requests]
        before = time.perf_counter()
        answers = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - before
        check_lengths([len(answer.outputs[0].token_ids) for answer in answers], requests)
        return seconds


class LlamaCpp:
    """One stream at a time: its Python API has no continuous batching."""

    def __init__(self, settings):
        import llama_cpp

        self.name = f"llama-cpp-python {llama_cpp.__version__}"
        self._llm = llama_cpp.Llama(
            settings["model"],
            n_ctx=LONGEST,
            n_threads=settings["threads"],
            n_threads_batch=settings["threads"],
            verbose=False,
        )

    def run(self, requests, shared_prefix):
        self._llm.reset()  # it would go on from the text that it computed last
        lengths = []
        before = time.perf_counter()
        for ids, wanted in requests:
            stream = self._llm.generate(ids, temp=0.0, reset=True)
            lengths.append(sum(1 for _ in zip(range(wanted), stream)))  # noqa: B905
        seconds = time.perf_counter() - before
        check_lengths(lengths, requests)
        return seconds


class OpenVino:
    """Its prefix cache cannot be emptied: a pipeline that has one is made anew for each run."""

    def __init__(self, settings):
        import numpy
        import openvino
        import openvino_genai

        self.name = f"openvino-genai {openvino_genai.__version__}"
        self._genai = openvino_genai
        self._as_tensor = lambda ids: openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
        self._settings = settings
        self._plain = self._pipeline(prefix_cache=False)

    def run(self, requests, shared_prefix):
        pipeline = self._pipeline(prefix_cache=True) if shared_prefix else self._plain
        prompts = [self._as_tensor(ids) for ids, _ in requests]
        configs = [self._config(wanted) for _, wanted in requests]
        before = time.perf_counter()
        answers = pipeline.generate(prompts, configs)
        seconds = time.perf_counter() - before
        check_lengths([len(answer.m_generation_ids[0]) for answer in answers], requests)
        return seconds

    def _pipeline(self, *, prefix_cache):
        scheduler = self._genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = SEQUENCES
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.enable_prefix_caching = prefix_cache
        device = {"INFERENCE_NUM_THREADS": self._settings["threads"]}
        pipeline = self._genai.ContinuousBatchingPipeline(
            self._settings["model"], scheduler, "CPU", device
        )
        pipeline.generate([self._as_tensor([5, 6, 7, 8])], [self._config(4)])  # compiles
        return pipeline

    def _config(self, tokens):
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        return config


def first_cores(count):
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:count])


class Vllm:
    """Reads no GGUF file: gets the same weights as a folder in bfloat16."""

    def __init__(self, settings):
        wanted = {
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
            # By itself ("auto") it leaves a core to its scheduler: one thread of two would compute.
            "VLLM_CPU_OMP_THREADS_BIND": first_cores(settings["threads"]),
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        os.environ |= wanted | os.environ
        import vllm

        self.name = f"vllm-cpu {vllm.__version__}"
        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            settings["model"],
            dtype="bfloat16",
            max_model_len=LONGEST,
            max_num_seqs=SEQUENCES,
            enable_prefix_caching=True,
            disable_log_stats=True,
        )

    def run(self, requests, shared_prefix):
        self._llm.reset_prefix_cache()
        prompts = [{"prompt_token_ids": ids} for ids, _ in requests]
        params = [
            self._params(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False)
            for _, n in requests
        ]
        before = time.perf_counter()
        answers = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - before
        check_lengths([len(answer.outputs[0].token_ids) for answer in answers], requests)
        return seconds


ENGINES = {"octavo": Octavo, "llamacpp": LlamaCpp, "openvino": OpenVino, "vllm": Vllm}


def check_lengths(lengths, requests):
    wanted = [tokens for _, tokens in requests]
    if lengths != wanted:
        raise RuntimeError(f"answers of {lengths} tokens, but {wanted} were asked for")


def take_stdout():
    """Return what leads to stdout; whatever engines print from now on goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def serve(engine_name, commands, answers):
    def answer(document):
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        engine = ENGINES[engine_name](json.loads(next(commands)))
        answer({"engine": engine.name})
        for line in commands:
            command = json.loads(line)
            answer({"seconds": engine.run(command["requests"], command["shared_prefix"])})
    except Exception as error:  # whatever an engine raises, the other end should hear of it
        with contextlib.suppress(BrokenPipeError):
            answer({"error": f"{type(error).__name__}: {error}"})
        raise


if __name__ == "__main__":
    serve(sys.argv[1], iter(sys.stdin.readline, ""), take_stdout())
