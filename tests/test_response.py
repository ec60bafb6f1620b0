"""Ids, stop sequences and finish_reason, without a server."""

import pytest
from mlx_lm.tool_parsers.kimi_k2 import Event

from mlx_lm_kimi.protocol.history import canonical
from mlx_lm_kimi.response import CallIds, Response, StopSequences


def test_a_stop_sequence_is_not_completed_across_a_call():
    response = Response(CallIds(), stops=["STOP"])
    events = [
        Event("content", "a ST"),
        Event("call", name="f", id="functions.f:0", index=0),
        Event("arguments", "{}"),
        Event("call_end"),
        Event("content", "OP b"),
    ]
    deltas = response.add(events) + response.finish()
    contents = [d["content"] for d in deltas if "content" in d]
    assert contents == ["a ST", "OP b"]
    assert "content" in deltas[0] and "tool_calls" in deltas[1]
    assert response.message()["content"] == "a STOP b" and not response.stopped


@pytest.mark.parametrize("index", [None, 0, 7, 999_999, 1_000_000, 10**30])
def test_an_id_of_the_answer_stays_in_the_history(index):
    ids = CallIds()
    own = ids.assign("f", index)
    call = {"id": own, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = canonical([{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert history.messages[0]["tool_calls"][0]["id"] == own
    if index is not None and index <= 999_999:
        assert own == f"functions.f:{index}"


@pytest.mark.parametrize("cut", range(1, 6))
def test_stop_sequences_in_any_cut(cut):
    text = "abcabdSTOabSTOPrest"
    stop = StopSequences(["STOP", "zzz"])
    pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
    assert "".join(map(stop.feed, pieces)) == "abcabdSTOab"
    assert stop.hit and stop.finish() == ""


@pytest.mark.parametrize(
    "generated, calls, reason",
    [
        ("stop", 0, "stop"),
        ("stop", 1, "tool_calls"),
        ("length", 0, "length"),
        ("length", 1, "length"),
    ],
)
def test_finish_reason(generated, calls, reason):
    response = Response(CallIds())
    response.add([Event("call", name="f", id="", index=None)] * calls)
    assert response.finish_reason(generated) == reason
