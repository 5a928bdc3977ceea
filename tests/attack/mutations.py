"""Requests made of /openapi.json: routes x fields x types, with values that are right, nearly right and absurd.

Every request follows from (seed, index) alone, so that one that broke something can be sent again.
"""

import json
import random

STRINGS = [
    "", " ", "a", "hello there", "null", "\x00", "\u202eabc", "\ufeff", "e\u0301" * 40, "\U0001f600", "\uffff", "<|im_end|>",
    "</s>", "<tool_call>", "{{ messages }}", "%s%n", "../../etc", "x" * 300, "\u4e2d\u6587" * 30, "json_schema", "function",
    "text", "auto", "required", "none", "user", "assistant", "tool", "system", "allowed_tools", "0", "-1", "1280", "base64",
]
NUMBERS = [
    "0", "-0", "1", "-1", "2", "0.5", "-0.0", "3.0", "3.5", "1e-400", "1e308", "-1e308", "1e400", "1279", "1280", "2147483647",
    "2147483648", "-2147483649", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1" * 400,
]
RAW_STRINGS = [
    '"\\ud800"', '"\\udc00x"', '"\\u0000"', '"\\u00"', '"\\x41"', '"\xff"', '"\xc0\xaf"', '"\xed\xa0\x80"',
    '"\xf5\x80\x80\x80"',
]
GRAMMARS = [
    "root ::= [a-z]+", 'root ::= "a" | root "b"', 'root ::= "yes" | "no"', "root ::= ", "root := x", "root ::= (((",
    'root ::= ("a"*)*', "root ::= [^\\x00-\\U0010ffff]", "root ::= x\nx ::= root?", 'root ::= "a"{1,99999}',
    'root ::= "\\ud800"',
]
EXPRESSIONS = [
    "[a-z]+", "(a|b)*c", "a{3,9}", "\\d{2,4}", "(", "a{99999}", "(?=x)", "[\\p{L}]", "\\", "(a*)*b", "^$", "[^\\x00-\\xff]",
]
SCHEMAS = [
    True,
    False,
    {},
    {"type": "object"},
    {"type": "integer", "minimum": 3, "maximum": 7},
    {"type": "nothing"},
    {"$ref": "#"},
    {"$ref": "#/nowhere"},
    {"enum": []},
    {"enum": [1, "a", None]},
    {"const": {"a": [1]}},
    {"type": ["string", "null"]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    {"type": "array", "minItems": 1e300},
    {"type": "string", "pattern": "^(a|b)+$"},
    {"type": "string", "pattern": "("},
    {"type": "string", "maxLength": -1},
    {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
    {"type": "object", "properties": 5},
    {"anyOf": []},
    {"allOf": [{"type": "string"}, {"type": "number"}]},
    {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
]
TOKENS = [0, 2, 7, 300, 1279] * 6 + [1280, -1, 2**40, "1"]

# Fields that a server refuses unless it was started for them.
NEED_FLAGS = {"priority", "deadline_ms", "workflow"}


class Raw(str):
    """Text that stands in the body as it is, whether or not it is JSON."""


class Pairs(list):
    """An object whose names may occur twice."""


def dump(value):
    """JSON text in latin-1's range of characters: Raw text may hold what no JSON library writes."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, (dict, Pairs)):
        members = value if isinstance(value, Pairs) else value.items()
        return "{" + ",".join(f"{json.dumps(name)}:{dump(member)}" for name, member in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value)


class Maker:
    """Makes requests for the server that the document is of; `model` is a name that it serves."""

    def __init__(self, document, model, seed):
        self.model, self.seed = model, seed
        self.operations = []
        self.lists = set()  # paths whose body is a list of objects
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                content = operation.get("requestBody", {}).get("content", {})
                schema = content.get("application/json", {}).get("schema")
                if schema and schema["type"] == "array":
                    schema = schema["items"]
                    self.lists.add(path)
                query = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
                self.operations.append((method.upper(), path, schema, query))
        bodies = [operation for operation in self.operations if operation[2]]
        self.names = sorted({name for operation in bodies for name in operation[2]["properties"]})
        # Routes that generate have the most fields, and the most behind them.
        weight = {operation[1]: 4 if "temperature" in operation[2]["properties"] else 1 for operation in bodies}
        self.with_body = [operation for operation in bodies for _ in range(weight[operation[1]])]

    def make(self, index):
        """(method, path, headers, body bytes)"""
        draw = random.Random(f"{self.seed}/{index}")
        method, path, schema, parameters = draw.choice(self.operations if draw.random() < 0.04 else self.with_body)
        is_list = path in self.lists
        ids = [self.model, "resp_0", "%00", "a%2Fb", "x" * 200, "%f0%9f%98%80"]
        path = path.replace("{id}", draw.choice(ids))
        if parameters and draw.random() < 0.8:
            values = ["", "1", "-1", "101", "asc", "%zz", "x" * 50]
            path += "?" + "&".join(f"{name}={draw.choice(values)}" for name in parameters)
        body = self.body(schema, draw).encode("latin-1", "replace") if schema else b""
        if body and is_list and draw.random() < 0.95:
            body = b"[" + body + b"]"
        if body and draw.random() < 0.05:
            body = self.damage(body, draw)
        return method, path, self.headers(draw), body

    def headers(self, draw):
        if draw.random() < 0.9:
            return {"Content-Type": "application/json"}
        kinds = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "*/*", "x" * 500,
                 "application/json; charset=utf-16"]
        return {
            "Content-Type": draw.choice(kinds),
            "X-Request-Id": draw.choice(["", "ok-1", "x" * 300, "a b"]),
            "Accept": draw.choice(["*/*", "text/html", ""]),
        }

    def body(self, schema, draw):
        properties = schema["properties"]
        often = draw.choice([0, 0.02, 0.05, 0.2])
        chosen = {}
        for name, field in properties.items():
            share = 1 if name in schema.get("required", []) else 0.01 if name in NEED_FLAGS else often
            if draw.random() < share:
                chosen[name] = self.value(name, field, draw)
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if name in properties and draw.random() < 0.98:  # most answers stay short
                chosen[name] = draw.randint(1, 4)
        if chosen.get("stream_options") is not None:
            chosen["stream"] = True
        for _ in range(draw.choice([0, 0, 0, 0, 1, 1, 2])):
            self.spoil(chosen, properties, draw)
        if draw.random() < 0.02:
            twice = [(name, self.odd(draw)) for name in draw.sample(list(properties), min(2, len(properties)))]
            return dump(Pairs(list(chosen.items()) + twice))
        return dump(chosen)

    def spoil(self, chosen, properties, draw):
        way = draw.random()
        if way < 0.05:
            chosen[draw.choice(["unknown", "", "\x00", "lora", "x" * 100])] = self.odd(draw)
        elif way < 0.3:
            chosen[draw.choice(self.names)] = self.odd(draw)  # perhaps a field of other routes
        elif way < 0.4 and chosen:
            chosen.pop(draw.choice(list(chosen)))
        else:
            chosen[draw.choice(list(properties))] = self.odd(draw)

    # ---- values that a field's schema allows, or nearly ----

    def value(self, name, schema, draw):
        if draw.random() < 0.03:
            return None
        special = getattr(self, "of_" + name, None)
        if special and draw.random() < 0.95:
            return special(draw)
        return self.by_type(schema, draw, 0)

    def by_type(self, schema, draw, depth):
        kinds = schema.get("type", ["string", "object"])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        kind = draw.choice([kind for kind in kinds if kind != "null"] or ["null"])
        low, high = (max(-1000, min(1000, schema.get(name, bound))) for name, bound in (("minimum", -10), ("maximum", 10)))
        if kind == "boolean":
            return draw.random() < 0.5
        if kind == "integer":
            return draw.choice([int(low), int(high), draw.randint(int(low), max(int(low), int(high)))])
        if kind == "number":
            return draw.uniform(low, high)
        if kind == "string":
            return draw.choice(STRINGS)
        if kind == "array":
            return [draw.choice([draw.choice(STRINGS), draw.randint(0, 1300)]) for _ in range(draw.randint(0, 4))]
        members = schema.get("properties", {}) if depth < 4 else {}
        return {n: self.by_type(m, draw, depth + 1) for n, m in members.items() if draw.random() < 0.6}

    def text(self, draw):
        return draw.choice(STRINGS)

    def some(self, make, draw, most=3):
        return [make(draw) for _ in range(draw.randint(0, most))]

    def of_model(self, draw):
        return self.model if draw.random() < 0.9 else draw.choice(["", "gpt-4"])

    def of_n(self, draw):
        return draw.choice([1, 1, 1, 1, 2, 4, 128])

    of_best_of = of_n

    def of_stream_options(self, draw):
        return {"include_usage": draw.random() < 0.5}

    def of_encoding_format(self, draw):
        return draw.choice(["float", "base64", "x"])

    def of_truncation(self, draw):
        return draw.choice(["auto", "disabled", "x"])

    def of_thinking(self, draw):
        return {"type": draw.choice(["enabled", "disabled", "x"])}

    def of_stop(self, draw):
        return draw.choice(["a", ["a", "\n"], []])

    of_stop_sequences = of_stop
    of_query = text

    def of_seed(self, draw):
        return draw.choice([0, 1, Raw("18446744073709551615"), Raw("-9223372036854775808")])

    def of_logit_bias(self, draw):
        keys = ["0", "5", "1279", "1280", "-1", "99999999999", "x", "1e3", ""]
        return {draw.choice(keys): draw.choice([0, -100, 100, 101, 1e300, "5", None]) for _ in range(draw.randint(0, 4))}

    def of_stop_token_ids(self, draw):
        return self.some(lambda d: d.choice([0, 2, 1279, 1280, -1, 2**31, 2**63, "1", None, 1.5]), draw)

    def of_tokens(self, draw):
        return self.some(lambda d: d.choice(TOKENS), draw, 12)

    def of_prompt(self, draw):
        way = draw.random()
        if way < 0.6:
            return draw.choice(STRINGS[2:])
        if way < 0.75:
            return self.of_tokens(draw)
        return self.some(self.text if way < 0.9 else self.of_tokens, draw)

    of_text_1 = of_text_2 = of_prompt

    def of_documents(self, draw):
        if draw.random() < 0.7:
            return [draw.choice(STRINGS[2:]) for _ in range(draw.randint(1, 4))]
        return self.some(lambda d: d.choice([self.text(d), {"text": self.text(d)}, {"text": 5}, []]), draw)

    def part(self, draw):
        kinds = ["text", "input_text", "output_text", "image_url", "thinking", "tool_use", "tool_result", "refusal", 5]
        return {
            "type": draw.choice(kinds),
            "text": draw.choice([self.text(draw), 5, None]),
            "id": "c1",
            "name": "f",
            "input": draw.choice([{}, [], {"a": 1}]),
            "tool_use_id": "c1",
            "thinking": "hm",
            "content": draw.choice(["ok", [{"type": "text", "text": "x"}], 5]),
        }

    def content(self, draw):
        return draw.choice([self.text(draw), self.text(draw), None, 5, self.some(self.part, draw), {}])

    def message(self, draw):
        roles = ["user"] * 4 + ["assistant", "system", "developer", "tool", "function", "x", 5]
        message = {"role": draw.choice(roles), "content": self.content(draw)}
        if draw.random() < 0.2:
            arguments = draw.choice(["{}", "{", {}, [], 5, "[" * 80])
            call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            message["tool_calls"] = draw.choice([[call], [], call, [5], None])
        if draw.random() < 0.1:
            names = ["name", "tool_call_id", "reasoning", "reasoning_content", "function_call"]
            message[draw.choice(names)] = self.odd(draw)
        return message

    def of_messages(self, draw):
        if draw.random() < 0.7:
            return [{"role": "user", "content": "hi"}]
        return self.some(self.message, draw, 4)

    def item(self, draw):
        item = {
            "type": draw.choice(["message", "function_call", "function_call_output", "reasoning", "x", 5]),
            "role": "user",
            "content": self.content(draw),
            "call_id": "c1",
            "name": draw.choice(["f", "", 5]),
            "arguments": "{}",
            "output": self.content(draw),
            "summary": [self.part(draw)],
        }
        return draw.choice([item, item, self.message(draw), 5, []])

    def of_input(self, draw):
        return draw.choice(STRINGS[2:]) if draw.random() < 0.6 else self.some(self.item, draw)

    def tool(self, draw):
        function = {
            "name": draw.choice(["f", "f", "g", "", 5, "\u00e9" * 70]),
            "description": "d",
            "parameters": draw.choice(SCHEMAS + [5, "x"]),
            "strict": draw.choice([True, False, None, 1]),
        }
        return draw.choice([
            {"type": "function", "function": function},
            {"type": "function", **function},
            {"name": function["name"], "input_schema": function["parameters"]},
            {"type": "x"},
            5,
        ])

    def of_tools(self, draw):
        return self.some(self.tool, draw)

    def of_tool_choice(self, draw):
        return draw.choice([
            "auto",
            "none",
            "required",
            {"type": "function", "function": {"name": "f"}},
            {"type": "function", "name": "f"},
            {"type": "auto"},
            {"type": "any"},
            {"type": "tool", "name": "f"},
            {"type": "tool"},
            {"function": 5},
            {},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": self.of_tools(draw)}},
        ])

    def of_response_format(self, draw):
        return draw.choice([
            {"type": "text"},
            {"type": "json_object"},
            {"type": draw.choice(["x", 5])},
            {"type": "json_schema", "json_schema": draw.choice([[], None])},
            {"type": "json_schema", "json_schema": {"name": "n", "schema": draw.choice(SCHEMAS)}},
        ])

    def of_text(self, draw):
        return {"format": {**self.of_response_format(draw), "schema": draw.choice(SCHEMAS)}}

    def of_output_config(self, draw):
        return {"format": {"type": "json_schema", "schema": draw.choice(SCHEMAS)}}

    def of_guided_json(self, draw):
        return draw.choice([draw.choice(SCHEMAS), json.dumps(draw.choice(SCHEMAS)), "{", "5"])

    def of_json_schema(self, draw):
        return draw.choice(SCHEMAS)

    def of_guided_regex(self, draw):
        return draw.choice(EXPRESSIONS)

    def of_guided_grammar(self, draw):
        return draw.choice(GRAMMARS)

    of_grammar = of_guided_grammar

    def of_structured_outputs(self, draw):
        return draw.choice([
            {"json": draw.choice(SCHEMAS)},
            {"regex": draw.choice(EXPRESSIONS)},
            {"grammar": draw.choice(GRAMMARS)},
            {"choice": draw.choice([["a", "b"], []])},
            {"json_object": True, "whitespace_pattern": draw.choice(EXPRESSIONS)},
            {"x": 1},
            {},
        ])

    def of_bad_words(self, draw):
        return self.some(lambda d: d.choice(STRINGS + [5, None]), draw)

    # ---- values that no field wants ----

    def odd(self, draw):
        way = draw.random()
        if way < 0.3:
            return Raw(draw.choice(NUMBERS))
        if way < 0.4:
            return Raw(draw.choice(RAW_STRINGS))
        if way < 0.6:
            return draw.choice(STRINGS)
        if way < 0.8:
            return draw.choice([None, True, False, [], {}])
        return self.odd_shape(draw)

    def odd_shape(self, draw):
        depth = draw.choice([2, 10, 63, 64, 200, 5000])
        way = draw.randrange(5)
        if way == 0:
            return Raw("[" * depth + "]" * depth)
        if way == 1:
            return Raw('{"a":' * depth + "1" + "}" * depth)
        if way == 2:
            return Raw("{" + ",".join(f'"k{i}":{i}' for i in range(draw.choice([5, 1024, 1100]))) + "}")
        if way == 3:
            return [draw.choice([None, True, 1.5, "a", [], {}]) for _ in range(draw.choice([1, 5, 300]))]
        names = ["type", "name", "function", "schema", "format", ""]
        members = [None, True, 5, "x", [], {"type": 5}, {"name": None}]
        return {draw.choice(names): draw.choice(members) for _ in range(3)}

    def damage(self, body, draw):
        at = draw.randrange(len(body))
        way = draw.randrange(4)
        if way == 0:
            return body[:at]
        if way == 1:
            return body[:at] + bytes([draw.randrange(256)]) + body[at + 1:]
        if way == 2:
            return body[:at] + body[at + draw.randint(1, 20):]
        return body[:at] + body[at:at + 30] + body[at:]
