"""The demo model on questions that training never saw, unconstrained and greedy."""

import json

import pytest
from mlx_lm import generate, load

from mlx_lm_kimi.demo import MODEL
from scripts.dialogues import dialogue, is_held_out, questions

COUNT = 50


@pytest.fixture(scope="module")
def demo():
    return load(str(MODEL))


def say(demo, messages, tools) -> str:
    model, tokenizer = demo
    prompt = tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True
    )
    return generate(model, tokenizer, prompt, max_tokens=60)


def test_the_directory_is_small():
    files = {f.name: f.stat().st_size for f in MODEL.iterdir()}
    assert sum(files.values()) < 4_000_000
    assert json.loads((MODEL / "config.json").read_text())["model_type"] == "kimi_k2"


def test_it_is_a_real_kimi(demo):
    from mlx_lm.models.deepseek_v3 import DeepseekV3MoE, Model

    model, tokenizer = demo
    assert isinstance(model, Model)
    assert any(isinstance(layer.mlp, DeepseekV3MoE) for layer in model.layers)
    assert tokenizer.has_tool_calling and not tokenizer.has_thinking


def test_training_never_sees_the_questions():
    import random

    rng = random.Random(1)
    for _ in range(300):
        for message in dialogue(rng)[0]:
            for call in message.get("tool_calls", ()):
                (about,) = json.loads(call["function"]["arguments"]).values()
                assert not is_held_out(about)
    assert all(
        is_held_out(*json.loads(q["call"]["function"]["arguments"]).values())
        for q in questions(COUNT, seed=7)
    )


def test_it_calls_the_right_tool_and_answers_from_the_result(demo):
    _, tokenizer = demo
    called = answered = 0
    for question in questions(COUNT, seed=7):
        text = say(demo, question["messages"], question["tools"])
        wanted = question["call"]
        try:
            (call,) = tokenizer.tool_parser(text, question["tools"])
        except ValueError:
            continue
        called += (call["name"], call["arguments"]) == (
            wanted["function"]["name"],
            json.loads(wanted["function"]["arguments"]),
        )
        history = [
            *question["messages"],
            {"role": "assistant", "content": "", "tool_calls": [wanted]},
            {
                "role": "tool",
                "tool_call_id": wanted["id"],
                "content": question["result"],
            },
        ]
        answer = say(demo, history, question["tools"])
        answered += question["result"] in answer
    assert called >= 0.8 * COUNT, f"{called} right calls of {COUNT}"
    assert answered >= 0.8 * COUNT, f"{answered} right answers of {COUNT}"


def test_it_does_not_always_call(demo):
    question = questions(1, seed=3)[0]
    text = say(demo, [{"role": "user", "content": "Hi"}], question["tools"])
    assert "<|tool_call" not in text and text
