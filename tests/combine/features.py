"""What a request may ask for, as a table: a name, whether the feature is compatible with those chosen so far, and the
fields that it adds to a request. The random walk (combine_test.py) takes any subset. A new feature is a row here."""

import dataclasses
from typing import Callable

SYSTEM = "You are a helpful assistant. Answer in one short sentence, and never in more than that. " * 12

PREDICTIONS = ["Hello! How can I help you?", "7 + 5 = 12.", "Once upon a time, there was a little fox named Oscar.", "yes"]


@dataclasses.dataclass(frozen=True)
class Feature:
    name: str
    fields: Callable  # (random) -> fields of the request
    excludes: tuple = ()  # features that ask for something else in the same field


def messages(random, *before):
    questions = ["Hello!", "What is 7 + 5?", "Tell me a story.", "What colour is the sky?", "Count to five.", "Who are you?"]
    return {"messages": [*before, {"role": "user", "content": random.choice(questions)}]}


FEATURES = [
    Feature("adapter", lambda random: {"model": random.choice(["pirate", "upper"])},
            ("scaled adapter", "adapter of another kind", "adapters")),
    Feature("adapter of another kind", lambda random: {"model": random.choice(["dora", "tables", "whole"])},
            ("adapter", "scaled adapter", "adapters")),
    Feature("scaled adapter", lambda random: {"lora": [{"id": "pirate", "scale": random.choice([0.25, 0.5, 2.0])}]},
            ("adapter", "adapter of another kind", "adapters")),
    Feature("adapters", lambda random: {"lora": [{"id": "pirate", "scale": random.choice([0.5, 1.0])},
                                                 {"id": "upper", "scale": random.choice([0.25, 1.0])}]},
            ("adapter", "scaled adapter", "adapter of another kind")),
    Feature("branches", lambda random: {"n": random.choice([2, 3])}, ("prediction",)),
    Feature("log-probabilities", lambda random: {"logprobs": True, "top_logprobs": random.choice([0, 3])}),
    Feature("grammar", lambda random: {"guided_regex": "[A-Z][a-z ]{3,20}[.!]"}, ("JSON", "choices")),
    Feature("JSON", lambda random: {"response_format": {"type": "json_object"}}, ("grammar", "choices")),
    Feature("choices", lambda random: {"guided_choice": ["yes", "no", "perhaps not today"]}, ("grammar", "JSON")),
    Feature("drawing", lambda random: {"temperature": 0.8, "seed": random.randrange(1000)}),
    Feature("filters", lambda random: {"top_p": 0.9, "top_k": 20, "min_p": 0.02}),
    Feature("penalties", lambda random: {"presence_penalty": 0.5, "repetition_penalty": 1.1}),
    Feature("stop texts", lambda random: {"stop": ["e", "at"]}),
    Feature("bias", lambda random: {"logit_bias": {str(random.randrange(3, 900)): -100, "40": 5}}),
    Feature("prefix", lambda random: messages(random, {"role": "system", "content": SYSTEM})),
    Feature("length", lambda random: {"max_tokens": random.choice([1, 2, 90])}),
    Feature("drafts off", lambda random: {"speculative": {"off": True}}, ("short drafts",)),
    Feature("short drafts", lambda random: {"speculative": {"max": random.choice([1, 3]), "min_p": 0.3}}, ("drafts off",)),
    Feature("prediction", lambda random: {"prediction": {"type": "content", "content": random.choice(PREDICTIONS)}},
            ("branches",)),
    Feature("priority", lambda random: {"priority": random.choice([-1, 3])}),
]


def without_adapters():
    """The features of a server that runs no adapters."""
    return [feature for feature in FEATURES if "adapter" not in feature.name]


def draw(random, features):
    """(names, request): a random subset of the features, and the request that asks for them."""
    chosen = []
    for feature in random.sample(features, random.randrange(0, 7)):
        if not any(other.name in feature.excludes for other in chosen):
            chosen.append(feature)
    request = {"model": "heddle-demo", "temperature": 0, "max_tokens": 24, "seed": 1, **messages(random)}
    for feature in chosen:
        request.update(feature.fields(random))
    return sorted(feature.name for feature in chosen), request
