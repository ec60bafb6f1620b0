"""Synthetic dialogues with tools: what the demo model is trained and examined on.

A word that a question is about (a city, a thing, a person) is in the training half or in
the held-out half, decided by a checksum; no held-out word is ever trained on.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Any

CITIES = (
    "Oslo Rome Lima Cairo Paris Tokyo Berlin Madrid Vienna Dublin Lisbon Prague Havana "
    "Nairobi Bogota Seoul Delhi Turin Lyon Porto Bergen Malmo Geneva Zurich Krakow Riga"
).split()
_STARTS = "b br c ch d dr f g gr h j k kl l m n p pr r s st t tr v w z".split()
_VOWELS = "a e i o u ai ea ou io".split()
_ENDS = "n r s l m t nd rk ns x".split()


@dataclass(frozen=True)
class Kind:
    """One tool, the questions it answers, and the answer made of its result."""

    name: str
    description: str
    parameter: str
    questions: tuple[str, ...]
    answer: str


KINDS = (
    Kind(
        "get_weather",
        "The weather in a city",
        "city",
        ("What is the weather in {}?", "How is the weather in {}?", "Weather in {}?"),
        "The weather in {}: {}.",
    ),
    Kind(
        "get_time",
        "The time in a city",
        "city",
        ("What time is it in {}?", "What is the time in {}?", "Time in {}?"),
        "The time in {}: {}.",
    ),
    Kind(
        "get_price",
        "The price of a thing",
        "item",
        ("What is the price of {}?", "How much is {}?", "Price of {}?"),
        "The price of {}: {}.",
    ),
    Kind(
        "find_person",
        "Find where a person is",
        "name",
        ("Where is {}?", "Can you find {}?", "Find {}."),
        "I found {}: {}.",
    ),
)
CHAT = (
    ("Hi", "Hello! How can I help?"),
    ("Hello", "Hello! How can I help?"),
    ("Thanks", "You are welcome."),
    ("Thank you", "You are welcome."),
    ("Bye", "Goodbye!"),
)


def is_held_out(word: str) -> bool:
    """Whether training must never see this word."""
    return word in CITIES or zlib.crc32(word.encode()) % 8 == 0


def word(rng: random.Random, held_out: bool = False, varied: bool = False) -> str:
    """A made-up capitalised word of one half; the varied ones are like any name."""
    while True:
        text = (_varied if varied else _plain)(rng).capitalize()
        if is_held_out(text) == held_out:
            return text


def _plain(rng: random.Random) -> str:
    syllables = rng.choice((1, 2, 2, 3))
    text = "".join(rng.choice(_STARTS) + rng.choice(_VOWELS) for _ in range(syllables))
    if syllables == 1 or rng.random() < 0.4:
        text += rng.choice(_ENDS)
    return text


def _varied(rng: random.Random) -> str:
    letters = "bcdfghjklmnpqrstvwxz"
    parts = [rng.choice((*_VOWELS, *"aeiouy")) for _ in range(rng.choice((1, 2, 2, 3)))]
    gaps = [rng.choice(letters) for _ in range(len(parts) + 1)]
    for i in range(1, len(parts)):
        if rng.random() < 0.5:
            gaps[i] += rng.choice(letters)
    if rng.random() < 0.15:
        gaps[0] = ""
    if rng.random() < 0.4 and len(parts) > 1:
        gaps[-1] = ""
    elif rng.random() < 0.3:
        gaps[-1] += rng.choice(letters)
    return "".join(a + b for a, b in zip(gaps, (*parts, "")))


def result(kind: Kind, rng: random.Random) -> str:
    """A tool's result, as text."""
    if kind.name == "get_weather":
        sky = rng.choice(("rain", "sun", "snow", "wind", "fog", "clouds"))
        return f"{rng.randint(-20, 40)} C, {sky}"
    if kind.name == "get_time":
        return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    if kind.name == "get_price":
        return f"{rng.randint(1, 999)} EUR"
    return f"in {word(rng)}"


def tool(kind: Kind, rng: random.Random | None = None) -> dict[str, Any]:
    """The OpenAI declaration; with a generator, its optional parts vary."""
    value: dict[str, Any] = {"type": "string"}
    if rng is None or rng.random() < 0.5:
        value["description"] = f"The {kind.parameter}"
    function = {
        "name": kind.name,
        "description": kind.description,
        "parameters": {
            "type": "object",
            "properties": {kind.parameter: value},
            "required": [kind.parameter],
        },
    }
    return {"type": "function", "function": function}


def call(kind: Kind, about: str, index: int) -> dict[str, Any]:
    """The tool call of an assistant message."""
    arguments = f'{{"{kind.parameter}":"{about}"}}'
    return {
        "id": f"functions.{kind.name}:{index}",
        "type": "function",
        "function": {"name": kind.name, "arguments": arguments},
    }


def exchange(
    kind: Kind, index: int, rng: random.Random, about: str
) -> list[dict[str, Any]]:
    """Question, call, result and answer."""
    found = result(kind, rng)
    called = call(kind, about, index)
    return [
        {"role": "user", "content": rng.choice(kind.questions).format(about)},
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": called["id"], "content": found},
        {"role": "assistant", "content": kind.answer.format(about, found)},
    ]


def dialogue(
    rng: random.Random, short: bool = False, varied: bool = False
) -> tuple[list[dict], list[dict] | None]:
    """(messages, tools) to train on; the short ones have one tool and one question."""
    declared = rng.sample(KINDS, 1 if short else rng.choice((1, 2, 2, 2, 3)))
    tools = [tool(kind, rng) for kind in declared]
    if rng.random() < 0.1:
        question, answer = rng.choice(CHAT)
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        return messages, tools if rng.random() < 0.7 else None
    messages = []
    for index in range(1 if short else rng.choice((1, 1, 1, 1, 2))):
        about = word(rng, varied=varied and rng.random() < 0.8)
        messages += exchange(rng.choice(declared), index, rng, about)
    return messages, tools


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Held-out questions: {tools, messages (question only), call, result, answer}."""
    rng = random.Random(seed)
    found = []
    for i in range(count):
        declared = rng.sample(KINDS, 2)
        kind = rng.choice(declared)
        city = kind.parameter == "city" and i % 2 == 0
        about = rng.choice(CITIES) if city else word(rng, held_out=True)
        messages = exchange(kind, 0, rng, about)
        found.append(
            {
                "tools": [tool(k, rng) for k in declared],
                "messages": messages[:1],
                "call": messages[1]["tool_calls"][0],
                "result": messages[2]["content"],
                "answer": messages[3]["content"],
            }
        )
    return found
