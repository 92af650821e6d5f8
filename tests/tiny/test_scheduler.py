"""Continuous batching.

1. Greedy output, logprobs and rows are those of a token-by-token oracle, however prompts are cut and batched.
2. Rows are prompt + output - 1; spans cover the output; a prefix hit changes nothing but `cached_tokens`.
3. More requests than places wait and are served; a request's draws with a seed do not depend on the others.
4. Each way to end says so: stop token, stop text, length (which comes first), abort; text is trimmed as asked.
5. A streamed request's deltas and the rest in its result join to the result.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from tiny.builders import SHAPE, TOKENIZER, WEIGHTS, Bench
from tiny.oracle import naive_forward
from turnkeeper.tiny.scheduler import FinishKind

PROMPT = [5, 80, 466, 300, 12]


def _naive_greedy(prompt: list[int], count: int) -> tuple[list[int], list[float], NDArray[np.int32]]:
    ids = list(prompt)
    logprobs: list[float] = []
    for _ in range(count):
        logits, _ = naive_forward(SHAPE, WEIGHTS[0], ids)
        token = int(logits[-1].argmax())
        shifted = logits[-1] - logits[-1].max()
        logprobs.append(float(shifted[token] - np.log(np.exp(shifted).sum())))
        ids.append(token)
    _, experts = naive_forward(SHAPE, WEIGHTS[0], ids)
    return ids[len(prompt) :], logprobs, experts[:-1]


@pytest.mark.parametrize("prefill_tokens", [1, 2, 512])
def test_greedy_output_is_the_oracles(prefill_tokens: int) -> None:
    ids, logprobs, experts = _naive_greedy(PROMPT, 6)
    bench = Bench(prefill_tokens=prefill_tokens)
    mates = [bench.ask([7 * i, 3]) for i in range(1, 4)]
    result = bench.run(PROMPT, temperature=0, max_new_tokens=6)
    assert list(result.tokens.ids) == ids
    np.testing.assert_allclose(result.tokens.logprobs, logprobs, atol=1e-4)
    assert result.experts is not None
    np.testing.assert_array_equal(result.experts, experts)
    assert all(len(mate.result.tokens.ids) == 8 for mate in mates)


def test_a_result_counts_what_it_holds() -> None:
    result = Bench().run(PROMPT)
    assert result.prompt_tokens == 5
    assert result.cached_tokens == 0
    assert result.num_retractions == 0
    assert result.experts is not None
    assert result.experts.shape == (5 + 8 - 1, 2, 2)
    assert [(s.version, s.start, s.end) for s in result.spans] == [("v1", 0, 8)]
    assert result.weight_version == "v1"


def test_a_prefix_hit_changes_nothing_but_the_count() -> None:
    bench = Bench()
    first = bench.run(PROMPT, temperature=0)
    longer = [*PROMPT, *first.tokens.ids, 9, 9]
    hit, miss = bench.run(longer, temperature=0), Bench().run(longer, temperature=0)
    assert hit.cached_tokens == len(PROMPT) + 8 - 1, "the last sampled token was never computed"
    assert miss.cached_tokens == 0
    assert hit.tokens.ids == miss.tokens.ids
    np.testing.assert_allclose(hit.tokens.logprobs, miss.tokens.logprobs, atol=1e-4)
    assert hit.experts is not None
    assert miss.experts is not None
    np.testing.assert_array_equal(hit.experts, miss.experts)


def test_salts_keep_requests_apart() -> None:
    bench = Bench()
    bench.run(PROMPT, salt="a")
    assert bench.run(PROMPT, salt="b").cached_tokens == 0
    assert bench.run(PROMPT, salt="a").cached_tokens == len(PROMPT) - 1


def test_a_prefix_hit_hands_on_the_rows_of_older_weights() -> None:
    bench = Bench()
    old = bench.run(PROMPT, temperature=0)
    bench.update()
    new = bench.run([*PROMPT, *old.tokens.ids], temperature=0)
    assert old.experts is not None
    assert new.experts is not None
    np.testing.assert_array_equal(new.experts[: len(old.experts)], old.experts)
    epoch = bench.traced[-1][0].epochs[0]
    assert epoch.stamps.tolist() == [0] * len(old.experts) + [1] * (len(new.experts) - len(old.experts))


def test_more_requests_than_places_wait_their_turn() -> None:
    bench = Bench(max_batch=2)
    heard = [bench.ask([i, i]) for i in range(1, 6)]
    bench.step(1)
    assert (bench.scheduler.running_count, bench.scheduler.waiting_count) == (2, 3)
    bench.finish()
    assert all(h.result.finish.kind is FinishKind.LENGTH for h in heard)
    assert bench.scheduler.is_idle


@pytest.mark.parametrize("seed", [0, 1, -5, 2**63])
def test_a_seed_repeats_whatever_the_batch(seed: int) -> None:
    alone = Bench().run(PROMPT, seed=seed)
    bench = Bench(seed=9, prefill_tokens=3)
    for i in range(1, 6):
        bench.ask([i] * i)
    crowded = bench.run(PROMPT, seed=seed)
    assert alone.tokens.ids == crowded.tokens.ids


def test_without_a_seed_the_engines_seed_and_the_arrival_decide() -> None:
    def both(seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        bench = Bench(seed=seed)
        return bench.run(PROMPT).tokens.ids, bench.run(PROMPT).tokens.ids

    assert both(1) == both(1)
    assert both(1) != both(2)
    assert both(1)[0] != both(1)[1]


STOP = TOKENIZER.encode("a").ids[0]


@pytest.mark.parametrize(
    ("asked", "kind", "matched", "count", "text"),
    [
        pytest.param({"stop_token_ids": frozenset({STOP})}, "stop", STOP, 1, "", id="a stop token is cut"),
        pytest.param(
            {"stop_token_ids": frozenset({STOP}), "no_stop_trim": True}, "stop", STOP, 1, "a", id="or is kept"
        ),
        pytest.param({"stop": ("aaa",)}, "stop", "aaa", 3, "", id="a stop text is cut"),
        pytest.param({"stop": ("aaa",), "no_stop_trim": True}, "stop", "aaa", 3, "aaa", id="or is kept too"),
        pytest.param({"stop": ("b", "aa")}, "stop", "aa", 2, "", id="the first stop text that appears"),
        pytest.param({"stop": ("aaaa",)}, "length", None, 4, "aaaa", id="length comes before a stop text"),
        pytest.param(
            {"stop_token_ids": frozenset({STOP}), "max_new_tokens": 1}, "length", None, 1, "a", id="and a stop token"
        ),
        pytest.param({"max_new_tokens": 0}, "length", None, 0, "", id="no token asked for"),
    ],
)
def test_each_end_says_so(
    asked: dict[str, object], kind: str, matched: int | str | None, count: int, text: str
) -> None:
    result = Bench().run(PROMPT, **{"max_new_tokens": 4, "logit_bias": {STOP: 1000.0}, **asked})
    assert result.finish.kind == kind
    assert result.finish.matched == matched
    assert len(result.tokens.ids) == len(result.tokens.logprobs) == count
    assert result.text == text


def test_the_checkpoints_stop_token_stops_unless_it_is_ignored() -> None:
    bias = {SHAPE.eos_token_id: 1000.0}
    stopped = Bench().run(PROMPT, ignore_eos=False, logit_bias=bias)
    assert (stopped.finish.matched, stopped.tokens.ids) == (2, (2,))
    assert Bench().run(PROMPT, logit_bias=bias).tokens.ids == (2,) * 8


def test_special_tokens_leave_no_text_unless_they_are_asked_for() -> None:
    bias = {SHAPE.eos_token_id: 1000.0}
    assert Bench().run(PROMPT, logit_bias=bias, max_new_tokens=2).text == ""
    shown = Bench().run(PROMPT, logit_bias=bias, max_new_tokens=2, skip_special_tokens=False)
    assert shown.text == "<|im_end|>" * 2


def test_the_minimum_bans_every_stop_token() -> None:
    bias = {SHAPE.eos_token_id: 1000.0, STOP: 1000.0}
    result = Bench().run(PROMPT, ignore_eos=False, stop_token_ids=frozenset({STOP}), logit_bias=bias, min_new_tokens=3)
    assert len(result.tokens.ids) == 4
    assert result.tokens.ids[-1] in bias


def test_a_sequence_ends_where_the_model_does() -> None:
    prompt = [1] * (SHAPE.max_position_embeddings - 3)
    result = Bench().run(prompt, max_new_tokens=None)
    assert result.finish.kind is FinishKind.LENGTH
    assert len(result.tokens.ids) == 3


@pytest.mark.parametrize("stop", [(), ("th",), ("\x00 never",)])
def test_deltas_and_the_rest_join_to_the_result(stop: tuple[str, ...]) -> None:
    bench = Bench()
    heard = bench.ask(PROMPT, stream=True, seed=3, max_new_tokens=60, stop=stop, top_logprobs=2)
    bench.finish()
    result = heard.result
    assert "".join(delta.text for delta in heard.deltas) + result.rest == result.text
    ids = tuple(token for delta in heard.deltas for token in delta.tokens.ids)
    assert ids + result.rest_tokens.ids == result.tokens.ids
    tops = tuple(top for delta in heard.deltas for top in delta.tokens.tops)
    assert tops + result.rest_tokens.tops == result.tokens.tops
    assert len(heard.deltas) == len(result.tokens.ids) - 1


def test_the_whole_text_is_the_tokenizers_decoding() -> None:
    result = Bench().run(PROMPT, max_new_tokens=200, seed=5)
    assert result.text == TOKENIZER.decode(list(result.tokens.ids), skip_special_tokens=True)
