"""Models over the types of Pydantic: their schemas compile, and random texts of them are valid by
Python's jsonschema, and by Pydantic where the schema says all that it checks.

    pydantic_schemas_test.py PROGRAM

PROGRAM is schema_texts. Exits with 77 (skipped) if Pydantic is not installed.
"""

import datetime
import decimal
import enum
import ipaddress
import pathlib
import re
import sys
import typing
import uuid

try:
    import jsonschema  # noqa: F401
    import pydantic
    import typing_extensions
except ImportError:
    print("pydantic or jsonschema is not installed")
    sys.exit(77)

from real_schemas_test import fault, texts_of

Field = pydantic.Field
Annotated = typing.Annotated


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(pydantic.BaseModel):
    x: int
    y: int = 0


class Cat(pydantic.BaseModel):
    kind: typing.Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    kind: typing.Literal["dog"]
    name: str


class Tree(pydantic.BaseModel):
    value: int
    children: list["Tree"] = []


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int
    b: str | None = None


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int


class Movie(typing_extensions.TypedDict):
    title: str
    year: typing.NotRequired[int]


class Pair(typing.NamedTuple):
    first: int
    second: str


# Types of which random texts are valid by Pydantic as well.
EXACT = [
    int, float, str, bool, type(None), datetime.date, uuid.UUID, pydantic.UUID4,
    Colour, Level, Point, Cat, Tree, Closed, Open, Movie, Pair, pydantic.HttpUrl, pydantic.AnyUrl,
    ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv4Interface,
    pathlib.Path, pydantic.PositiveInt,
    pydantic.NonNegativeInt, pydantic.NegativeInt, pydantic.NonPositiveInt, pydantic.PositiveFloat,
    pydantic.NegativeFloat, pydantic.StrictInt, pydantic.StrictStr, pydantic.StrictBool,
    Annotated[int, Field(ge=5, lt=100)], Annotated[int, Field(multiple_of=7)],
    Annotated[float, Field(gt=0, le=1)], Annotated[str, Field(min_length=2, max_length=5)],
    Annotated[str, Field(pattern=r"^[A-Z]{2}-\d{4}$")], Annotated[str, Field(pattern=r"^\w+$", max_length=40)],
    typing.Literal["a", "b", 3], typing.Literal[True],
]  # fmt: skip
# Types of which Pydantic checks more than it writes into the schema, or reads with other rules.
WRITTEN = [
    bytes, decimal.Decimal, pydantic.Base64Str, dict[int, str], datetime.time, datetime.datetime, datetime.timedelta, pydantic.AwareDatetime,
    pydantic.NaiveDatetime, pydantic.PastDate, pydantic.FutureDate, pydantic.UUID1, pydantic.UUID3, pydantic.UUID5,
    pydantic.FilePath, pydantic.DirectoryPath, pydantic.SecretStr, pydantic.SecretBytes,
    pydantic.IPvAnyAddress, pydantic.IPvAnyNetwork, pydantic.IPvAnyInterface, ipaddress.IPv6Network, ipaddress.IPv6Interface,
    pydantic.Base64Bytes, pydantic.Base64UrlStr, pydantic.ByteSize, pydantic.PostgresDsn, pydantic.RedisDsn,
    pydantic.FileUrl, pydantic.WebsocketUrl, re.Pattern, typing.Any, dict, list, pydantic.JsonValue,
]  # fmt: skip


def wrapped(kind):
    """A type as fields have it."""
    yield kind
    yield typing.Optional[kind]
    yield list[kind]


MORE = [
    set[str], set[int], frozenset[int], set[Colour], set[bool], set[tuple[int, int]], tuple[int, str],
    tuple[int, ...], dict[str, int], dict[Colour, int], dict[str, list[Point]],
    list[Cat | Dog], Annotated[Cat | Dog, Field(discriminator="kind")], int | str, int | float | None,
    Annotated[list[int], Field(min_length=1, max_length=3)], Annotated[set[int], Field(min_length=2)],
    Annotated[dict[str, int], Field(min_length=1)], typing.Sequence[int], typing.Mapping[str, bool],
    dict[Annotated[str, Field(pattern="^k[0-9]+$")], int], typing.Union[Point, list[Point]],
]  # fmt: skip


def models():
    """Models with one field, by name, and whether Pydantic must read what is valid."""
    kinds = [(k, True) for kind in EXACT for k in wrapped(kind)]
    kinds += [(kind, False) for kind in WRITTEN] + [(kind, True) for kind in MORE]
    for number, (kind, is_exact) in enumerate(kinds):
        name = f"{number} {kind}"
        yield name, pydantic.create_model(f"Model{number}", field=(kind, ...)), is_exact


def main():
    all_models = list(models())
    assert len(all_models) >= 150, len(all_models)
    schemas = [(name, model.model_json_schema()) for name, model, _ in all_models]
    faults = []
    for (name, model, is_exact), (_, schema), out in zip(
        all_models, schemas, texts_of(sys.argv[1], schemas)
    ):
        problem = out.get("error") or fault(schema, out["texts"])
        for text in out.get("texts", []) if is_exact and problem is None else []:
            try:
                model.model_validate_json(text)
            except pydantic.ValidationError as error:
                problem = f"{text[:200]}: {error}"
        if problem is not None:
            faults.append(f"{name}: {problem[:600]}")
    print("\n".join(faults))
    print(f"{len(all_models)} models, {len(faults)} with faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
