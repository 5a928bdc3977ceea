"""Checks generated texts with Python's jsonschema, formats included; needs the package jsonschema.

    HEDDLE_CORPUS_OUT=/tmp/texts.jsonl build/tests/grammar_corpus_test
    python3 check.py /tmp/texts.jsonl
"""

import json
import pathlib
import sys

import jsonschema


def main():
    lines = (pathlib.Path(__file__).parent / "schemas.jsonl").read_text().splitlines()
    schemas = [json.loads(line) for line in lines]
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validators = [jsonschema.Draft202012Validator(s, format_checker=checker) for s in schemas]
    faults = texts = 0
    for line in open(sys.argv[1]):
        number, text = json.loads(line)
        texts += 1
        try:
            error = next(validators[number].iter_errors(json.loads(text)), None)
        except json.JSONDecodeError as exception:
            error = exception
        if error is not None:
            faults += 1
            print(f"schema {number + 1}: {lines[number]}\n  text {text}\n  {error}", file=sys.stderr)
    print(f"{texts} texts of {len(schemas)} schemas, {faults} not valid")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
