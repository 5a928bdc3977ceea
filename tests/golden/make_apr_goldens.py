#!/usr/bin/env python3
"""Calls and joins of APR's traces, by the functions of its published orchestrator: the goldens of
tests/server/branches/apr_test.cc.

    ./make_apr_goldens.py APR/tinyrl/rollout/apr_utils.py     # of github.com/Parallel-Reasoning/APR

Each case is a trace in the words of its search, drawn at random, with the prompts of its calls, traces
of these searches, what each has found, and the trace with which the model goes on.
"""

import json
import sys
import types
from pathlib import Path
from random import Random

CASES = 40


def orchestrator(path):
    """The module, whose imports of a tokenizer and of clients are not needed here."""
    for name, member in (("transformers", "AutoTokenizer"), ("litellm", "text_completion"), ("sglang", None)):
        stub = types.ModuleType(name)
        if member:
            setattr(stub, member, type(member, (), {"from_pretrained": staticmethod(lambda name: None)}))
        sys.modules[name] = stub
    module = types.ModuleType("apr_utils")
    exec(compile(Path(path).read_text(), path, "exec"), module.__dict__)
    return module


def state(rng, target, numbers):
    a, b = rng.sample(range(len(numbers)), 2)
    high, low = max(numbers[a], numbers[b]), min(numbers[a], numbers[b])
    rest = [n for i, n in enumerate(numbers) if i not in (a, b)]
    made = high + low if rng.random() < 0.5 else high - low
    sign = "+" if made == high + low else "-"
    return rest + [made], f"{high}{sign}{low}={made}"


def moved(node, target, numbers, operations):
    return f"Moving to Node #{node}\nCurrent State: {target}:{numbers}, Operations: {operations}\n"


def found(target, numbers):
    return f"Exploring Operation: {numbers}, Resulting Numbers: [{target}]\n{target},{target} equal: Goal Reached\n"


def trace(rng):
    """A trace that ends with calls: (prompt and text, the nodes that it calls)."""
    target, numbers = rng.randint(5, 99), [rng.randint(1, 60) for _ in range(4)]
    text = rng.choice(["", "", "Sub Call Budget: 3 ", "Token Budget: 512 "]) + moved("0", target, numbers, [])
    nodes, operations, path = [], [], "0"
    for depth in range(rng.randint(1, 2)):
        children = []
        for i in range(rng.randint(1, 4)):
            after, operation = state(rng, target, numbers)
            text += f"Exploring Operation: {operation}, Resulting Numbers: {after}\n"
            text += f"Generated Node #{path},{i}: {target}:{after} Operation: {operation}\n"
            children.append((f"{path},{i}", after, operations + [operation]))
        nodes += children
        path, numbers, operations = rng.choice(children)
        if len(numbers) < 2 or depth == 1 or rng.random() < 0.4:
            break
        text += moved(path, target, numbers, operations)
        if rng.random() < 0.3:
            text += "<Sub Searches>\n<No Solution in Sub Search 0 at level 1 at Node #0,0>\n<End Sub Searches>\n"
    called = rng.sample(nodes, rng.randint(1, len(nodes)))
    text += "<Calling Sub Searches>\n"
    for i, (node, _, _) in enumerate(called):
        text += f"<Start Sub Search {i} at level 1> Moving to Node #{node}\n"
    if rng.random() < 0.1:
        text += "<Start Sub Search 9 at level 1> Moving to Node #7,7\n"
    return text + "<End Calling Sub Searches>", target


def searched(rng, prompt, target):
    """The trace of a search from `prompt`."""
    text = prompt + f"\nExploring Operation: 7-{rng.randint(1, 6)}=1, Resulting Numbers: [1]\n1,{target} unequal: No Solution\n"
    if rng.random() < 0.3:
        return text
    text += f"{target},{target} equal: Goal Reached\n"
    return text if rng.random() < 0.2 else text + prompt.replace("7", "8") + "\n" + found(target, "9-1=8") + rng.choice(["", " \n"])


def case(apr, rng):
    text, target = trace(rng)
    condition = text.split("\n")[0].split("Moving to Node")[0]
    try:
        prompts, nodes = apr.get_subsearch_info(text)
    except Exception:
        return {"trace": text, "prompts": []}
    if condition.startswith("Token Budget: "):
        prompts = [condition + prompt for prompt in prompts]
    traces = [searched(rng, prompt, target) for prompt in prompts]
    results = [apr.get_search_result(one) for one in traces]
    return {"trace": text, "prompts": prompts, "searches": traces, "results": results,
            "joined": apr.get_main_trace_after_sub_search(text, nodes, results)}


def main():
    apr = orchestrator(sys.argv[1])
    cases = [case(apr, Random(seed)) for seed in range(CASES)]
    (Path(__file__).parent / "apr.json").write_text(json.dumps(cases, indent=0) + "\n")
    print(sum(bool(one["prompts"]) for one in cases), "of", len(cases), "call searches")


if __name__ == "__main__":
    main()
