"""One flag for each sampling option; a command takes them all at once."""

from __future__ import annotations

from typing import Annotated

import msgspec

from octavo.cli.flags import Option
from octavo.cli.gathered import gathered
from octavo.cli.options import (
    Choices,
    IgnoreEos,
    MaxTokens,
    Seed,
    Stop,
    StopToken,
    Temperature,
    TopK,
    TopP,
)
from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError

MinP = Annotated[float, Option(help="Drop tokens below this share of the best one's chance.")]
Presence = Annotated[float, Option(help="Taken off tokens that the answer holds.")]
Frequency = Annotated[float, Option(help="The same, for each time it holds them.")]
Repetition = Annotated[float, Option(help="Divides tokens of prompt and answer; 1: none.")]
Bias = Annotated[
    list[str] | None,
    Option(metavar="ID=VALUE", help="Added to this token's logit; repeatable."),
]
Allowed = Annotated[list[int] | None, Option(help="Only such tokens; repeatable.")]
BadWord = Annotated[list[str] | None, Option(help="Never write this text; repeatable.")]
KeepStop = Annotated[
    bool, Option("--include-stop-str-in-output", help="The stop text is in the answer.")
]
MinTokens = Annotated[int, Option(help="No end before so many tokens.")]
Structured = Annotated[
    str | None,
    Option(
        metavar="JSON",
        help='Hold answers to a form, such as {"regex": "[0-9]+"}: json, json_object, regex, '
        "choice, grammar or structural_tag.",
    ),
]
LogProbs = Annotated[
    int | None, Option(help="Of so many most likely tokens, with --json; -1: of all.")
]
PromptLogProbs = Annotated[int | None, Option(help="The same for the prompt's tokens.")]
SkipSpecial = Annotated[bool, Option(help="Special tokens are no text.")]
Detokenize = Annotated[bool, Option(help="Turn tokens into text.")]

Beams = Annotated[
    bool, Option("--use-beam-search", help="Look for the most likely texts; draw nothing.")
]
BeamWidth = Annotated[
    int | None,
    Option(help="Use beam search, follow and print so many texts; default: 4."),
]
LengthPenalty = Annotated[
    float, Option(help="Of beam search: above 0 favours long texts, below 0 short ones.")
]
EarlyStopping = Annotated[
    str, Option(help="How soon enough ended texts are enough: true (at once), false, never.")
]


def _sampling(
    n: Choices = 1,
    max_tokens: MaxTokens = 128,
    min_tokens: MinTokens = 0,
    structured_outputs: Structured = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    presence_penalty: Presence = 0.0,
    frequency_penalty: Frequency = 0.0,
    repetition_penalty: Repetition = 1.0,
    logit_bias: Bias = None,
    allowed_token_id: Allowed = None,
    bad_word: BadWord = None,
    seed: Seed = None,
    stop: Stop = None,
    stop_token_id: StopToken = None,
    include_stop_str_in_output: KeepStop = False,
    ignore_eos: IgnoreEos = False,
    logprobs: LogProbs = None,
    prompt_logprobs: PromptLogProbs = None,
    skip_special_tokens: SkipSpecial = True,
    detokenize: Detokenize = True,
    use_beam_search: Beams = False,
    beam_width: BeamWidth = None,
    length_penalty: LengthPenalty = 1.0,
    early_stopping: EarlyStopping = "false",
) -> SamplingParams:
    return SamplingParams(
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        structured_outputs=None if structured_outputs is None else _form(structured_outputs),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        logit_bias=dict(map(_bias, logit_bias)) if logit_bias else None,
        allowed_token_ids=tuple(allowed_token_id) if allowed_token_id else None,
        bad_words=tuple(bad_word or ()),
        seed=seed,
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_id or ()),
        include_stop_str_in_output=include_stop_str_in_output,
        ignore_eos=ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=skip_special_tokens,
        detokenize=detokenize,
        use_beam_search=use_beam_search or beam_width is not None,
        beam_width=beam_width,
        length_penalty=length_penalty,
        early_stopping={"true": True, "false": False}.get(early_stopping, early_stopping),
    )


def _form(text: str) -> StructuredOutputs:
    try:
        return msgspec.json.decode(text, type=StructuredOutputs)
    except msgspec.DecodeError as error:
        reason = error.__cause__ if isinstance(error.__cause__, RequestError) else error
        raise RequestError(f"--structured-outputs {text!r:.80}: {reason}") from None


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise RequestError(
            f"--logit-bias must be ID=VALUE, such as 42=-1.5, got {text!r}"
        ) from None


with_sampling = gathered("params", _sampling)
"""Gives a command the flags of `_sampling` in place of its parameter `params`."""
