"""Pydantic models of real projects, as their users would give them for structured output: their schemas compile, and random
texts of them are valid by Python's jsonschema and are read by the models themselves.

    project_schemas_test.py PROGRAM [--list] [--only NAME] [--all]

PROGRAM is schema_texts. Without --all it takes some models of each package. Modules that are not installed are left out; exits with 77 (skipped) if there are none.
"""

import importlib
import inspect
import os
import pkgutil
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no look-up over the network

try:
    import jsonschema  # noqa: F401
    import pydantic
except ImportError:
    print("pydantic or jsonschema is not installed")
    sys.exit(77)

import real_schemas_test
from real_schemas_test import fault, texts_of

# Packages whose modules define models: clients of large APIs, protocols, agents, and formats.
PACKAGES = """openai.types anthropic.types mcp.types a2a.types fastmcp.utilities mistralai.models cohere.types
llama_index.core.schema litellm.types crewai.types agents.items pydantic_ai.messages haystack.dataclasses
guidellm.schemas huggingface_hub.inference langchain_core.messages ollama._types openapi_pydantic""".split()
MODELS_OF_EACH = 30
TEXTS = 5
LEAST_SHARE = 0.98
MAX_SECONDS = 20.0  # of one schema, on a busy machine


def modules(package):
    """The package and its submodules, as far as they can be imported."""
    try:
        top = importlib.import_module(package)
    except Exception:
        return
    yield top
    for found in pkgutil.walk_packages(getattr(top, "__path__", []), package + "."):
        try:
            yield importlib.import_module(found.name)
        except Exception:
            continue


def models():
    """(name, model) of each model once."""
    seen = set()
    for package in PACKAGES:
        for module in modules(package):
            for _, model in sorted(inspect.getmembers(module, inspect.isclass)):
                is_model = issubclass(model, pydantic.BaseModel) and not inspect.isabstract(model)
                if not is_model or model in seen or not model.__module__.startswith(package.split(".")[0]):
                    continue
                seen.add(model)
                if model.model_fields:
                    yield f"{model.__module__}.{model.__name__}", model


def with_schemas(found):
    """(name, model, schema) of those whose schema Pydantic can write."""
    for name, model in found:
        try:
            schema = model.model_json_schema()
        except Exception:
            continue
        yield name, model, schema


def some(found):
    """The models with the most fields of each package, and others spread over the rest."""
    chosen = []
    for package in sorted({name.split(".")[0] for name, _ in found}):
        own = sorted((m for m in found if m[0].split(".")[0] == package), key=lambda m: (-len(m[1].model_fields), m[0]))
        half = MODELS_OF_EACH // 2
        rest = own[half:]
        chosen += own[:half] + rest[:: max(1, len(rest) // half)][:half]
    return chosen


def main():
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    real_schemas_test.TEXTS = TEXTS
    found = [(name, model) for name, model in models() if only in name]
    if "--all" not in sys.argv:
        found = some(found)
    found = list(with_schemas(found))
    if not found:
        print("none of the packages is installed")
        sys.exit(77)
    good = unread = 0
    slowest = (0.0, "")
    results = texts_of(sys.argv[1], [(name, schema) for name, _, schema in found])
    for (name, model, schema), out in zip(found, results):
        problem = out.get("error") or fault(schema, out["texts"])
        good += problem is None
        slowest = max(slowest, (out["seconds"], name))
        if problem is not None:
            print(f"{name}: {problem[:500]}")
            continue
        # Models check more than their schemas say; a text that one does not read is counted.
        for text in out["texts"]:
            try:
                model.model_validate_json(text)
            except Exception as error:
                unread += 1
                if "--list" in sys.argv:
                    print(f"{name} does not read {text[:200]}: {str(error)[:300]}")
                break
    print(f"{good} of {len(found)} compile and give valid texts; {unread} models refuse a text that their schema allows;"
          f" the slowest took {slowest[0]:.2f} s ({slowest[1]})")
    assert slowest[0] < MAX_SECONDS
    assert good >= LEAST_SHARE * len(found)


if __name__ == "__main__":
    main()
