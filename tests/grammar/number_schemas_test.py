"""Conditions on numbers, combined by chance: whether a number can be written agrees with Python's jsonschema.

    number_schemas_test.py PROGRAM [--seed N] [--schemas N]

PROGRAM is schema_texts. Each schema is compiled once for each of some numbers, which a minimum and a maximum single out, so
that it is refused exactly if the number is not valid. Exits with 77 (skipped) without the package jsonschema.
"""

import json
import random
import subprocess
import sys

NUMBERS = [-2, -1.5, 0, 0.5, 1, 2.5, 3, 3.5, 4, 6, 7.25, 9]


def part(depth):
    """A random schema of numbers. What "not" rules out has to have an opposite, so that multipleOf is on top only."""
    kinds = ["type", "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"]
    kind = random.choice(kinds + (["not", "not", "allOf", "anyOf", "oneOf", "if"] if depth > 0 else []))
    if kind == "type":
        types = random.choice(["integer", "number", ["integer", "string"], ["number", "null"], "string"])
        return {"type": types}
    if kind in ("const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        return {kind: random.choice(NUMBERS)}
    if kind == "enum":
        return {"enum": random.sample(NUMBERS, 4)}
    if kind == "not":
        return {"not": part(depth - 1)}
    if kind == "if":
        return {"if": part(depth - 1), "then": part(depth - 1), "else": part(depth - 1)}
    return {kind: [part(depth - 1) for _ in range(random.randint(1, 3))]}


def schema():
    whole = {"allOf": [part(2) for _ in range(random.randint(1, 3))]}
    if random.random() < 0.3:
        whole["multipleOf"] = random.choice([0.5, 1, 1.5, 3])
    return whole


def main():
    try:
        import jsonschema
    except ImportError:
        print("jsonschema is not installed")
        sys.exit(77)
    seed = int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 26
    count = int(sys.argv[sys.argv.index("--schemas") + 1]) if "--schemas" in sys.argv else 150
    print(f"seed {seed}")
    random.seed(seed)
    cases = []
    for _ in range(count):
        given = schema()
        validator = jsonschema.Draft202012Validator(given)
        for number in NUMBERS:
            single = {"allOf": [given, {"type": "number"}], "minimum": number, "maximum": number}
            cases.append((single, number, validator.is_valid(number)))
    lines = "".join(json.dumps({"name": str(i), "schema": c[0]}) + "\n" for i, c in enumerate(cases))
    run = subprocess.run([sys.argv[1], "2"], input=lines, capture_output=True, text=True, check=True)
    faults = 0
    for (given, number, valid), line in zip(cases, run.stdout.splitlines(), strict=True):
        out = json.loads(line)
        texts = out.get("texts")
        good = texts is not None and all(float(text) == number for text in texts) if valid else (
            "no value is valid" in out.get("error", ""))
        if not good:
            faults += 1
            print(f"{number} is {'' if valid else 'not '}valid by {json.dumps(given['allOf'][0])}: {line[:300]}")
    print(f"{len(cases)} numbers of {count} schemas, {sum(c[2] for c in cases)} valid, {faults} faults")
    assert faults == 0


if __name__ == "__main__":
    main()
