"""Histories are append-only: no generated token is prefilled again in an agent's session."""

import pytest

from benchmarks.agent_session import TURNS, script, session
from tests.test_server_calls import wait_for_tokenizer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["thinking", "k25"])
def test_nothing_is_prefilled_again(name, stream, request):
    server = request.getfixturevalue(name)
    turns = script(wait_for_tokenizer(server)._tokenizer)
    if name == "k25":  # its prompt opens the reasoning
        turns = [ids[1:] for ids in turns]
    server.scripts.turns["agent"] = turns
    again, generated = session(server, stream)
    assert generated == sum(map(len, turns[: len(TURNS)]))
    assert again == 0
