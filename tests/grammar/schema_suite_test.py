"""The official JSON-Schema-Test-Suite: no text that it calls invalid is taken, but for what is listed below. Of those that it
calls valid the same half is taken as ever: the suite asks mostly what values of other types than a keyword's are, or keys that no
schema names, which docs/structured-output.md leaves out.

    schema_suite_test.py PROGRAM [--list]

PROGRAM is schema_texts. HEDDLE_SCHEMA_SUITE names a copy of github.com/json-schema-org/JSON-Schema-Test-Suite (MIT); without it
the test is skipped (77).
"""

import json
import os
import pathlib
import subprocess
import sys

DRAFTS = ("draft2020-12", "draft2019-09", "draft7", "draft6", "draft4")
# Other documents, the content of strings, and formats that are annotations here (docs/structured-output.md).
PASSED_OVER = ("refRemote", "vocabulary", "content", "cross-draft", "format-assertion", "uri-template", "relative-json-pointer")
# Parts of the names of tests whose invalid texts are taken: IDNA's rules for labels, identifiers in keywords that are none, what stands beside
# a $ref in old drafts, dynamic anchors of other schemas than the root, additionalItems that nothing belongs to.
NOT_HELD = (
    "A-label", "non-canonical Punycode", "unknownKeyword", "$ref prevents a sibling", "dynamicRef.json#11", "dynamicRef.json#12", "dynamicRef.json#20",
    "unevaluatedItems with ignored",
)
MOST_REFUSED = 45  # of schemas by which something is valid
LEAST_SHARE = 0.55  # of the valid texts, where the schema is taken


def in_order(value, schema):
    """The value with its properties in the schema's order, which answers have."""
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [in_order(item, items) for item in value]
    if not isinstance(value, dict):
        return value
    listed = schema.get("properties") if isinstance(schema, dict) else None
    names = [name for name in (listed or {}) if name in value] if isinstance(listed, dict) else []
    names += [name for name in value if name not in names]
    return {name: in_order(value[name], (listed or {}).get(name)) for name in names}


def groups(suite):
    for draft in DRAFTS:
        for file in sorted((suite / "tests" / draft).rglob("*.json")):
            if any(part in file.stem for part in PASSED_OVER):
                continue
            for index, group in enumerate(json.loads(file.read_text())):
                yield f"{file.relative_to(suite / 'tests')}#{index} {group['description']}", group


def main():
    suite = pathlib.Path(os.environ.get("HEDDLE_SCHEMA_SUITE", "none"))
    if not (suite / "tests").is_dir():
        print("HEDDLE_SCHEMA_SUITE names no copy of the test suite")
        sys.exit(77)
    lines, known = [], []
    for name, group in groups(suite):
        texts = [json.dumps(in_order(test["data"], group["schema"]), ensure_ascii=False) for test in group["tests"]]
        lines.append(json.dumps({"name": name, "schema": group["schema"], "texts": texts}))
        known.append((name, group, texts))
    run = subprocess.run([sys.argv[1]], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in run.stdout.split("\n") if line]
    assert len(answers) == len(known)
    valid = taken = refused = 0
    wrong = []
    for (name, group, texts), answer in zip(known, answers):
        accepts = answer.get("accepts")
        if accepts is None:
            refused += any(test["valid"] for test in group["tests"])
            if "--list" in sys.argv:
                print(f"refused: {name}: {answer['error']}")
            continue
        for test, text, accepted in zip(group["tests"], texts, accepts):
            valid += test["valid"]
            taken += test["valid"] and accepted
            title = f"{name}: {test['description']}"
            if accepted and not test["valid"] and not any(part in title for part in NOT_HELD):
                wrong.append(f"{title}: {text}")
            elif test["valid"] and not accepted and "--list" in sys.argv:
                print(f"not taken: {name}: {test['description']}: {text}")
    print(f"{len(known)} schemas, {refused} of them refused although something is valid; {taken} of {valid} valid texts are taken")
    for line in wrong:
        print(f"taken although invalid: {line}")
    assert not wrong
    assert refused <= MOST_REFUSED
    assert taken >= LEAST_SHARE * valid


if __name__ == "__main__":
    main()
