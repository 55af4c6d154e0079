"""llama.cpp's logits behind a pipe: `python logits_worker.py`, in its environment.

Reads one JSON document a line and answers each with one:

    {"model": PATH, "threads": N, "longest": TOKENS}   {"engine": NAME, "vocab_size": V}
    {"tokens": IDS}                                    {"rows": IDS - 1}

The second kind is followed by as many rows of V float32 numbers, little-endian: what follows each
token but the last. Ends when its input does. Needs llama-cpp-python.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Answer until there is nothing more to read."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library prints must not come between
    try:
        import llama_cpp

        settings = json.loads(sys.stdin.readline())
        model = llama_cpp.Llama(
            settings["model"],
            n_ctx=settings["longest"],
            n_batch=settings["longest"],
            n_ubatch=settings["longest"],
            n_threads=settings["threads"],
            n_threads_batch=settings["threads"],
            logits_all=True,
            verbose=False,
        )
    except Exception as error:
        say(answers, {"error": f"{type(error).__name__}: {error}"})
        return
    name = f"llama-cpp-python {llama_cpp.__version__}"
    say(answers, {"engine": name, "vocab_size": model.n_vocab()})
    for line in sys.stdin:
        tokens = json.loads(line)["tokens"]
        model.reset()
        model.eval(tokens)
        say(answers, {"rows": len(tokens) - 1})
        answers.write(model.scores[: len(tokens) - 1].astype("<f4").tobytes())
        answers.flush()


def say(answers, document) -> None:
    """Write one line."""
    answers.write(json.dumps(document).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    main()
