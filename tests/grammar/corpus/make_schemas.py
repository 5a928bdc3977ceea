"""Writes schemas.jsonl: hand-written schemas of the kinds that applications send, and random ones
made of every keyword that heddle honours, combined so that a value exists.

    python3 make_schemas.py > schemas.jsonl
"""

import json
import random

HAND_WRITTEN = [
    {},
    True,
    {"type": "object"},
    {"type": "array"},
    {"type": "string"},
    {"type": ["integer", "null"]},
    {"const": {"a": [1, None, "x\"y"]}},
    {"enum": ["red", "green", 3, None, 1.5, [1], {"k": "\n"}]},
    # An extraction as pydantic writes it.
    {"$defs": {"Address": {"properties": {"street": {"title": "Street", "type": "string"},
                                          "zip": {"pattern": "^\\d{5}$", "type": "string"}},
                           "required": ["street", "zip"], "title": "Address", "type": "object"}},
     "properties": {"name": {"title": "Name", "type": "string"},
                    "age": {"minimum": 0, "maximum": 150, "type": "integer"},
                    "address": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}],
                                "default": None}},
     "required": ["name", "age"], "title": "Person", "type": "object"},
    # A recursive tree and a linked list.
    {"$ref": "#/$defs/node", "$defs": {"node": {
        "type": "object", "properties": {"value": {"type": "integer"},
                                         "children": {"type": "array", "maxItems": 2,
                                                      "items": {"$ref": "#/$defs/node"}}},
        "required": ["value", "children"], "additionalProperties": False}}},
    {"type": "object", "properties": {"head": {"type": "boolean"},
                                      "tail": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
     "required": ["head", "tail"], "additionalProperties": False},
    # Mutual recursion: an expression language.
    {"$defs": {"expr": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/op"}]},
               "op": {"type": "object",
                      "properties": {"op": {"enum": ["+", "-", "*"]},
                                     "left": {"$ref": "#/$defs/expr"},
                                     "right": {"$ref": "#/$defs/expr"}},
                      "required": ["op", "left", "right"], "additionalProperties": False}},
     "$ref": "#/$defs/expr"},
    # Tagged unions.
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"},
                                                 "radius": {"type": "number",
                                                            "exclusiveMinimum": 0}},
                "required": ["kind", "radius"]},
               {"type": "object", "properties": {"kind": {"const": "square"},
                                                 "side": {"type": "number", "minimum": 0.5}},
                "required": ["kind", "side"]}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "null"},
                                                         "maxItems": 3}]},
    {"oneOf": [{"type": "integer", "maximum": 4}, {"type": "integer", "minimum": 5}]},
    {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "string", "minLength": 5,
                                                    "maxLength": 9}]},
    # Conjunctions.
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"properties": {"b": {"type": "string"}, "a": {"minimum": 10, "maximum": 99}},
                "required": ["b"]}]},
    {"type": "string", "allOf": [{"pattern": "^[a-z]+$"}, {"minLength": 3}, {"maxLength": 6},
                                 {"pattern": "e"}]},
    {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
     "anyOf": [{"properties": {"x": {"maximum": 0}}}, {"properties": {"x": {"minimum": 1000,
                                                                            "maximum": 2000}}}]},
    {"$ref": "#/$defs/base", "$defs": {"base": {"type": "string", "minLength": 2}},
     "maxLength": 4},
    # Objects as maps.
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "patternProperties": {"^x_": {"type": "integer"}, "s$": {"type": "integer",
                                                                               "minimum": 5}},
     "additionalProperties": False},
    {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"],
     "patternProperties": {"^i": {"maximum": 50}}, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "propertyNames": {"pattern": "^[a-c]{1,3}$"}, "maxProperties": 3,
     "additionalProperties": {"type": "null"}},
    {"type": "object", "propertyNames": {"enum": ["p", "q"]},
     "additionalProperties": {"type": "boolean"}},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"},
                                      "c": {"type": "null"}}, "minProperties": 2,
     "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"},
                                      "c": {"type": "null"}}, "minProperties": 1,
     "maxProperties": 2},
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "required": ["needed"], "additionalProperties": {"type": "integer"}},
    {"type": "object", "properties": {"": {"type": "null"}, "a/b~c": {"type": "boolean"},
                                      "q\"u": {"type": "null"}, "\u00fc\n": {"type": "integer"}},
     "required": ["", "a/b~c"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": False}, "required": ["a"]},
    # Arrays.
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False,
     "minItems": 2},
    {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"type": "null"},
     "minItems": 3, "maxItems": 5},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": True},
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2,
                                "maxItems": 2}, "minItems": 1, "maxItems": 4},
    {"type": "array", "maxItems": 0},
    {"type": "array", "prefixItems": [{"type": "null"}], "unevaluatedItems": False},
    # Numbers.
    {"type": "integer", "minimum": -12, "maximum": 1034},
    {"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 101},
    {"type": "integer", "multipleOf": 7},
    {"type": "integer", "multipleOf": 15, "minimum": 100, "maximum": 1000},
    {"type": "integer", "maximum": -3},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25},
    {"type": "number", "multipleOf": 0.25, "minimum": -2, "maximum": 2},
    {"type": "number", "multipleOf": 0.5},
    {"type": "number", "minimum": 1e3, "maximum": 1e6},
    {"minimum": 3},
    # Strings.
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "minLength": 200, "maxLength": 300},
    {"type": "string", "pattern": "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$"},
    {"type": "string", "pattern": "^[A-Z]{2,3}-\\d+$", "maxLength": 8},
    {"type": "string", "pattern": "\\\\|\"|\\t", "maxLength": 5},
    {"type": "string", "pattern": "^[^\\x00-\\x1f\"]*$", "maxLength": 10},
    *[{"type": "string", "format": name}
      for name in ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri", "hostname",
                   "duration"]],
    {"type": "string", "format": "date", "pattern": "^2024-"},
    # An API call of the kind that tools have.
    {"type": "object",
     "properties": {"location": {"type": "string", "description": "The city"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3}},
     "required": ["location"], "additionalProperties": False},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
     "properties": {"items": {"type": "array", "minItems": 1, "maxItems": 3, "items": {
         "type": "object", "properties": {
             "sku": {"type": "string", "pattern": "^[A-Z0-9]{6}$"},
             "qty": {"type": "integer", "minimum": 1, "maximum": 99},
             "price": {"type": "number", "minimum": 0, "maximum": 9999.99},
             "tags": {"type": "array", "items": {"enum": ["new", "sale", "hot"]},
                      "uniqueItems": True}},
         "required": ["sku", "qty"], "additionalProperties": False}},
         "placed": {"type": "string", "format": "date-time"}},
     "required": ["items", "placed"], "additionalProperties": False},
]

NAMES = ["id", "name", "tags", "value", "unit", "x", "y", "created_at", "is_active", "note"]
PATTERNS = ["^[a-z]{2,5}$", "^\\d+$", "[aeiou]", "^(ab|cd)*$", "^[A-Z][a-z]+( [A-Z][a-z]+)?$",
            "x$", "^.{3}$", "^#[0-9a-f]{6}$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "uri"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def schema(self, depth):
        kinds = ["string", "integer", "number", "boolean", "null", "enum"]
        if depth > 0:
            kinds += ["object", "object", "object", "array", "array", "any_of", "all_of", "one_of"]
        return getattr(self, self.random.choice(kinds))(depth)

    def boolean(self, _):
        return {"type": "boolean"}

    def null(self, _):
        return {"type": "null"}

    def enum(self, _):
        values = ["a", "b c", "\u00e9", 1, 2.5, -3, None, True, False, "", "long \"quoted\" text"]
        return {"enum": self.random.sample(values, self.random.randint(1, 5))}

    def string(self, _):
        r = self.random
        schema = {"type": "string"}
        kind = r.randrange(5)
        if kind == 0:
            schema["minLength"] = r.randint(0, 5)
            if self.chance(0.7):
                schema["maxLength"] = schema["minLength"] + r.randint(0, 40)
        elif kind == 1:
            schema["pattern"] = r.choice(PATTERNS)
        elif kind == 2:
            schema["format"] = r.choice(FORMATS)
        elif kind == 3:
            schema["pattern"] = r.choice(["^[a-z]*$", "[0-9]", "^.*z$"])
            schema["minLength"] = r.randint(1, 4)
            schema["maxLength"] = r.randint(4, 12)
        return schema

    def integer(self, _):
        r = self.random
        schema = {"type": "integer"}
        low = r.choice([-1000, -10, -1, 0, 1, 7, 99, 1000])
        if self.chance(0.6):
            schema[r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.6):
            schema[r.choice(["maximum", "exclusiveMaximum"])] = low + r.choice([20, 100, 12345])
        if self.chance(0.3):
            schema["multipleOf"] = r.choice([2, 3, 5, 10])
        return schema

    def number(self, _):
        r = self.random
        schema = {"type": "number"}
        low = r.choice([-100.5, -1, 0, 0.001, 3.25, 1e4])
        if self.chance(0.6):
            schema[r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.6):
            schema[r.choice(["maximum", "exclusiveMaximum"])] = low + r.choice([0.5, 3, 1000.125])
        if self.chance(0.2):
            schema["multipleOf"] = r.choice([0.5, 0.25, 2])
        return schema

    def array(self, depth):
        r = self.random
        schema = {"type": "array", "items": self.schema(depth - 1)}
        if self.chance(0.5):
            schema["minItems"] = r.randint(0, 3)
        schema["maxItems"] = schema.get("minItems", 0) + r.randint(0, 3)
        if self.chance(0.2):
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(r.randint(1, 2))]
        return schema

    def object(self, depth):
        r = self.random
        names = r.sample(NAMES, r.randint(0, 5))
        schema = {"type": "object", "properties": {n: self.schema(depth - 1) for n in names}}
        schema["required"] = [n for n in names if self.chance(0.6)]
        kind = r.randrange(4)
        if kind == 0:
            schema["additionalProperties"] = False
        elif kind == 1:
            schema["additionalProperties"] = self.schema(0)
        elif kind == 2 and names:
            schema["patternProperties"] = {"^q": self.schema(0)}
        if names and self.chance(0.2):
            schema["maxProperties"] = len(schema["required"]) + r.randint(0, 2)
        elif names and self.chance(0.2):
            schema["minProperties"] = r.randint(1, len(names))
        return schema

    def any_of(self, depth):
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.random.randint(2, 3))]}

    def all_of(self, depth):
        return {"allOf": [self.object(depth - 1),
                          {"properties": {"extra": self.schema(depth - 1)}, "required": ["extra"]}]}

    def one_of(self, depth):
        branches = []
        for tag in self.random.sample(["cat", "dog", "bird"], 2):
            branch = {"type": "object", "properties": {"kind": {"const": tag},
                                                       "data": self.schema(depth - 1)},
                      "required": ["kind", "data"]}
            branches.append(branch)
        return {"oneOf": branches}


def closes_extra(schema):
    """allOf of a closed object and another property has no value: such random ones are left out."""
    if isinstance(schema, list):
        return any(closes_extra(part) for part in schema)
    if not isinstance(schema, dict):
        return False
    for part in schema.get("allOf", []):
        bad = part.get("additionalProperties", True) is not True or "maxProperties" in part
        if bad and any("extra" in p.get("properties", {}) for p in schema["allOf"]):
            return True
    return any(closes_extra(part) for part in schema.values())


def main():
    schemas = list(HAND_WRITTEN)
    seed = 0
    while len(schemas) < 330:
        schema = Maker(seed).schema(3)
        seed += 1
        if not closes_extra(schema) and len(json.dumps(schema)) < 1200:
            schemas.append(schema)
    for schema in schemas:
        print(json.dumps(schema, separators=(",", ":"), ensure_ascii=False))


if __name__ == "__main__":
    main()
