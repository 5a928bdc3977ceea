"""Schemas that people use, from installed packages: nearly all of them compile, and what random
tokens make under their masks is valid by Python's jsonschema.

    real_schemas_test.py PROGRAM [--list] [--only NAME]

PROGRAM is schema_texts. The packages: check-jsonschema, openapi-spec-validator,
jsonschema-specifications, cyclonedx-python-lib, nbformat, validate-pyproject, altair, kubernetes-validate. Exits with 77
(skipped) if none is installed; schemas of missing packages are left out.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys

TEXTS = 20
MAX_SECONDS = 20.0  # of one schema, on a busy machine
LEAST_SHARE = 44 / 45

VENDORED = """azure-pipelines bamboo-spec bitbucket-pipelines buildkite changie circle-ci
citation-file-format cloudbuild codecov compose-spec dependabot drone-ci github-actions
github-discussion github-issue-config github-issue-forms github-workflows gitlab-ci meltano mergify
readthedocs renovate snapcraft taskfile travis woodpecker-ci""".split()

# Package, path in it.
SCHEMAS = [("check_jsonschema", f"builtin_schemas/vendor/{name}.json") for name in VENDORED] + [
    ("check_jsonschema", "builtin_schemas/custom/github-workflows-require-timeout.json"),
    ("openapi_spec_validator", "resources/schemas/v2.0/schema.json"),
    ("openapi_spec_validator", "resources/schemas/v3.0/schema.json"),
    ("openapi_spec_validator", "resources/schemas/v3.1/schema.json"),
    ("openapi_spec_validator", "resources/schemas/v3.2/schema.json"),
    ("jsonschema_specifications", "schemas/draft4/metaschema.json"),
    ("jsonschema_specifications", "schemas/draft6/metaschema.json"),
    ("jsonschema_specifications", "schemas/draft7/metaschema.json"),
    ("jsonschema_specifications", "schemas/draft201909/metaschema.json"),
    ("jsonschema_specifications", "schemas/draft202012/metaschema.json"),
    ("cyclonedx", "schema/_res/bom-1.4.SNAPSHOT.schema.json"),
    ("cyclonedx", "schema/_res/bom-1.5.SNAPSHOT.schema.json"),
    ("cyclonedx", "schema/_res/bom-1.6.SNAPSHOT.schema.json"),
    ("nbformat", "v3/nbformat.v3.schema.json"),
    ("nbformat", "v4/nbformat.v4.5.schema.json"),
    ("validate_pyproject", "pyproject_toml.schema.json"),
    ("validate_pyproject", "project_metadata.schema.json"),
    ("validate_pyproject", "plugins/setuptools.schema.json"),
    ("altair", "vegalite/v6/schema/vega-lite-schema.json"),
]


# Documents that schemas refer to, which are bundled with them as section 9.3 of the specification
# describes it: (name of the schema, package, path, the identifier under which it is referred to).
METASCHEMA = "jsonschema_specifications"
BUNDLED = [("v2.0", METASCHEMA, "schemas/draft4/metaschema.json", None)]
BUNDLED += [
    ("draft201909", METASCHEMA, f"schemas/draft201909/vocabularies/{name}", None)
    for name in "core applicator validation meta-data format content".split()
] + [
    ("draft202012", METASCHEMA, f"schemas/draft202012/vocabularies/{name}", None)
    for name in "core applicator unevaluated validation meta-data format-annotation content".split()
]
for version in ("1.4", "1.5", "1.6"):
    for name in ("jsf-0.82", "spdx", "cryptography-defs"):
        file = f"{name}.SNAPSHOT.schema.json"
        BUNDLED.append(
            (f"bom-{version}.SNAPSHOT.schema", "cyclonedx", f"schema/_res/{file}",
             f"http://cyclonedx.org/schema/{file}")
        )
BUNDLED += [
    ("drone-ci", "kubernetes_validate", "kubernetes-json-schema/*-local/_definitions.json",
     "https://json.schemastore.org/kubernetes-definitions.json")
]
BUNDLED += [
    ("pyproject_toml.schema", "validate_pyproject", path, None)
    for path in ("project_metadata.schema.json",)
]


def read(package, path):
    """A JSON file of an installed package, the last one if `path` is a pattern; or None."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    files = sorted(pathlib.Path(spec.submodule_search_locations[0]).glob(path))
    return json.loads(files[-1].read_text()) if files else None


def installed():
    """The schemas as (name, schema)."""
    for package, path in SCHEMAS:
        schema = read(package, path)
        if schema is None:
            continue
        name = pathlib.Path(path).stem
        if name in ("schema", "metaschema"):
            name = pathlib.Path(path).parent.name
        is_old = "draft-04" in schema.get("$schema", "")
        holder = "definitions" if is_old or "definitions" in schema else "$defs"
        for i, (of, other, other_path, uri) in enumerate(BUNDLED):
            document = read(other, other_path) if of == name else None
            if document is None:
                continue
            if other == "kubernetes_validate":  # as older drafts call it
                document = json.loads(json.dumps(document).replace("#/$defs/", "#/definitions/"))
                document["definitions"] = document.pop("$defs")
            if uri is not None:
                document["id" if is_old else "$id"] = uri
            schema.setdefault(holder, {})[f"bundled-{i}"] = document
        yield name, schema


def texts_of(program, schemas, *options):
    """What the program writes about each schema."""
    lines = "".join(json.dumps({"name": n, "schema": s}) + "\n" for n, s in schemas)
    run = subprocess.run(
        [program, str(TEXTS), *options], input=lines, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def fault(schema, texts, **others):
    """The first error of a validator, or None."""
    import jsonschema

    try:  # Python's own expressions know no \\p{...}
        import regex

        jsonschema._keywords.re = regex
    except ImportError:
        pass
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, **others)
    for text in texts:
        if "\ufeff" in text:  # white space to ECMA-262, and not to Python
            continue
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            return f"{text}: {error}"
        try:
            error = next(validator.iter_errors(value), None)
        except jsonschema.exceptions._WrappedReferencingError:
            continue  # the validator does not find what is bundled
        if error is not None:
            place = "/".join(str(step) for step in error.absolute_path)
            rule = "/".join(str(step) for step in error.absolute_schema_path)
            return f"at {place!r}, by {rule}: {error.message[:300]} in {text[:2000]}"
    return None


def main():
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    schemas = [(name, schema) for name, schema in installed() if only in name]
    if not schemas:
        print("none of the packages is installed")
        sys.exit(77)
    good = bad = 0
    for (name, schema), out in zip(schemas, texts_of(sys.argv[1], schemas)):
        problem = out.get("error")
        if problem is None:
            problem = fault(schema, out["texts"])
            bad += problem is not None
        good += problem is None
        print(f"{name}: {out['seconds']:.2f} s, {out['units'] / 1e6:.1f} M units,"
              f" {out.get('states', 0)} states{'' if problem is None else ': ' + problem}")
        assert out["seconds"] < MAX_SECONDS, name
    print(f"{good} of {len(schemas)} compile and give valid texts")
    assert bad == 0, "a text is not valid"
    assert good >= LEAST_SHARE * len(schemas) - 1e-9 or only


if __name__ == "__main__":
    main()
