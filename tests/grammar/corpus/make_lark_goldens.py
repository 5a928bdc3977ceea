"""Writes lark.jsonl: grammars in Lark's notation, and what the package lark says of random texts.

    python3 make_lark_goldens.py > lark.jsonl          # needs the package lark 1.3

Each line has a grammar and texts as [text, complete, longest]: whether Lark's Earley parser takes the text with the
lexer "dynamic_complete", which cuts it into terminals in every way, and with "dynamic", which takes the longest match of
each terminal. Texts are derived from Lark's own rules and terminals by chance, and then half of them are changed.
"""

import json
import random
import re
import sys

import lark

try:
    from re import _constants as codes, _parser as expressions
except ImportError:
    import sre_constants as codes
    import sre_parse as expressions

TEXTS = 160

GRAMMARS = {
    "json": r"""
        ?start: value
        ?value: object | array | string | SIGNED_NUMBER -> number | "true" -> true | "false" -> false | "null" -> null
        array  : "[" [value ("," value)*] "]"
        object : "{" [pair ("," pair)*] "}"
        pair   : string ":" value
        string : /"([^"\\\n]|\\.)*"/
        %import common.SIGNED_NUMBER
        %import common.WS
        %ignore WS
    """,
    "arithmetic": r"""
        ?start: sum
              | NAME "=" sum    -> assign_var
        ?sum: product
            | sum "+" product   -> add
            | sum "-" product   -> sub
        ?product: atom
            | product "*" atom  -> mul
            | product "/" atom  -> div
        ?atom: NUMBER           -> number
             | "-" atom         -> neg
             | NAME             -> var
             | "(" sum ")"
        %import common.CNAME -> NAME
        %import common.NUMBER
        %import common.WS_INLINE
        %ignore WS_INLINE
    """,
    "python expressions": r"""
        start: expr
        ?expr: or_test | or_test "if" or_test "else" expr
        ?or_test: and_test ("or" and_test)*
        ?and_test: not_test ("and" not_test)*
        ?not_test: "not" not_test | comparison
        ?comparison: arith (COMP arith)*
        ?arith: term (("+" | "-") term)*
        ?term: power (("*" | "/" | "//" | "%") power)*
        ?power: postfix ["**" power]
        ?postfix: atom | call | index | attribute
        call: postfix "(" [arguments] ")"
        index: postfix "[" expr "]"
        attribute: postfix "." NAME
        arguments: expr ("," expr)* [","]
        ?atom: NAME | NUMBER | STRING | "(" expr ")" | "[" [arguments] "]"
        COMP: "<" | ">" | "==" | "!=" | "<=" | ">="
        NAME: /[a-z_][a-z0-9_]*/
        NUMBER: /0|[1-9][0-9]*/
        STRING: /'[^'\n]*'/
        %ignore / +/
    """,
    "sql": r"""
        start: select ";"?
        select: "select"i columns "from"i table [where] [order] [limit]
        columns: STAR | column ("," column)*
        column: (aggregate | NAME) ["as"i NAME]
        aggregate: AGGREGATE "(" (STAR | NAME) ")"
        table: NAME [("inner"i | "left"i) "join"i NAME "on"i condition]
        where: "where"i condition
        condition: comparison (("and"i | "or"i) comparison)*
        comparison: operand OPERATOR operand | operand "is"i ["not"i] "null"i
        ?operand: NAME | NUMBER | TEXT
        order: "order"i "by"i NAME [DIRECTION]
        limit: "limit"i NUMBER
        STAR: "*"
        AGGREGATE.2: "count"i | "sum"i | "max"i
        OPERATOR: "=" | "<>" | "<" | ">" | "<=" | ">="
        DIRECTION: "asc"i | "desc"i
        NAME: /[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)?/a
        NUMBER: /\d+(\.\d+)?/a
        TEXT: "'" /[^']*/ "'"
        %ignore /\s+/
    """.replace("/a\n", "/\n"),
    # As an agent's tool for changing files describes its input.
    "patch": r"""
        start: begin hunk+ end
        begin: "*** Begin Patch" LF
        end: "*** End Patch" LF?
        hunk: add | delete | update
        add: "*** Add File: " filename LF add_line+
        delete: "*** Delete File: " filename LF
        update: "*** Update File: " filename LF move? change?
        filename: /[^\n]+/
        add_line: "+" /[^\n]*/ LF -> line
        move: "*** Move to: " filename LF
        change: (context | change_line)+ last?
        context: ("@@" | "@@ " /[^\n]+/) LF
        change_line: ("+" | "-" | " ") /[^\n]*/ LF
        last: "*** End of File" LF
        %import common.LF
    """.replace("/[^\\n]*/ LF", "[/[^\\n]+/] LF"),
    # A tool for sums, as the documentation of custom tools shows them.
    "tool": r"""
        start: expr
        expr: term (SP ADD SP term)* -> add
        term: factor (SP MUL SP factor)* -> mul
        factor: INT
        SP: " "
        ADD: "+"
        MUL: "*"
        %import common.INT
    """,
    "templates": r"""
        start: list{number} | call{NAME, number}
        list{item}: "[" separated{item, ","}? "]"
        separated{item, by}: item (by item)*
        call{name, argument}: name "(" separated{argument, ";"} ")"
        number: DIGIT ~ 1..3 ["." DIGIT ~ 2]
        NAME: LETTER ~ 2
        %import common (DIGIT, LETTER)
    """,
    "flags": r"""
        start: (WORD | HEX | DOTS | SPACED)+ "end"i
        WORD: /x[a-c]+/i
        HEX: "0x" ("0".."9" | "a".."f")+
        DOTS: /<.*?>/s
        SPACED: / \( [0-9]+   # digits
                  \) /x
        %ignore " "
        %ignore /#[^\n]*\n/
    """,
    "optional parts": r"""
        start: a? b? c? | "(" a? ")" d*
        a: "a"+
        b: ["b" "B"]
        c: ("c" | "C" c)?
        d: "d" ("," d)*
        %ignore "_"
    """,
    "words": r"""
        start: sentence ("." sentence)* "."?
        sentence: WORD WORD+ | "go" WORD NUMBER?
        WORD: /[a-z]+/
        NUMBER: /[0-9]+/
        %ignore /[ \n]/
    """,
}


def text_of_items(items, depth=0):
    return "".join(text_of(op, argument, depth) for op, argument in items)


def character_of(items):
    negated = items[0][0] is codes.NEGATE
    members = set()
    for op, argument in items[1 if negated else 0 :]:
        if op is codes.LITERAL:
            members.add(chr(argument))
        elif op is codes.RANGE:
            members.update(chr(c) for c in range(argument[0], min(argument[1], argument[0] + 80) + 1))
        elif op is codes.CATEGORY:
            members.update(category(argument))
    pool = [chr(c) for c in range(32, 127) if chr(c) not in members] + ["é"] if negated else sorted(members)
    return random.choice(pool)


def category(name):
    return {
        codes.CATEGORY_DIGIT: "0123456789",
        codes.CATEGORY_WORD: "abcxyz_019",
        codes.CATEGORY_SPACE: " \n\t",
    }[name]


def text_of(op, argument, depth):
    """A random text of one item of a parsed expression."""
    if op is codes.LITERAL:
        return chr(argument)
    if op is codes.NOT_LITERAL:
        return random.choice([c for c in "ab 1'\"<" if ord(c) != argument])
    if op is codes.ANY:
        return random.choice("ab1 >")
    if op is codes.IN:
        return character_of(argument)
    if op is codes.BRANCH:
        return text_of_items(random.choice(argument[1]), depth)
    if op is codes.SUBPATTERN:
        return text_of_items(argument[-1], depth)
    if op in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        low, high, items = argument
        count = random.randint(low, max(low, min(high, low + 3)))
        return "".join(text_of_items(items, depth) for _ in range(count))
    if op in (codes.ASSERT_NOT, codes.ASSERT, codes.AT):
        return ""
    raise NotImplementedError(str(op))


def text_of_terminal(pattern):
    flags = 0
    for flag in pattern.flags:
        flags |= getattr(re, flag.upper())
    text = text_of_items(expressions.parse(pattern.to_regexp().removeprefix("(?a)"), flags))
    if "i" in pattern.flags:
        text = "".join(random.choice((c.lower(), c.upper())) for c in text)
    return text


class Deriver:
    def __init__(self, parser):
        self.terminals = {t.name: t.pattern for t in parser.terminals}
        self.ignored = list(parser.ignore_tokens)
        self.rules = {}
        for rule in parser.rules:
            self.rules.setdefault(rule.origin.name, []).append(rule.expansion)
        self.depth = dict.fromkeys(self.terminals, 0)
        while True:
            before = dict(self.depth)
            for name, expansions in self.rules.items():
                known = [max((self.depth[s.name] for s in e), default=0) + 1 for e in expansions
                         if all(s.name in self.depth for s in e)]
                if known:
                    self.depth[name] = min(known)
            if before == self.depth:
                break

    def derive(self, name, budget):
        if name in self.terminals:
            return [text_of_terminal(self.terminals[name])]
        expansions = self.rules[name]
        if budget <= 0:
            deepest = [max((self.depth[s.name] for s in e), default=0) for e in expansions]
            expansions = [e for e, d in zip(expansions, deepest) if d == min(deepest)]
        return [part for s in random.choice(expansions) for part in self.derive(s.name, budget - 1)]

    def text(self, start):
        parts = self.derive(start, random.randint(2, 14))
        if not self.ignored:
            return "".join(parts)
        often = random.choice((0, 0.3, 0.9, 1))
        text = ""
        for part in parts:
            text += part
            if random.random() < often:
                text += text_of_terminal(self.terminals[random.choice(self.ignored)])
        return text


def changed(text):
    """With a character or two added, lost, doubled or exchanged."""
    for _ in range(random.randint(1, 2)):
        at = random.randint(0, len(text))
        other = random.choice(text or "x") if random.random() < 0.7 else random.choice("a1 ()[]{}.,:;\"'=+-_\n")
        text = random.choice((text[:at] + other + text[at:], text[:at] + text[at + 1 :], text[:at] + other + text[at + 1 :]))
    return text


def takes(parser, text):
    try:
        parser.parse(text)
        return True
    except lark.exceptions.LarkError:
        return False


def main():
    random.seed(26)
    for name, grammar in GRAMMARS.items():
        complete = lark.Lark(grammar, parser="earley", lexer="dynamic_complete", ambiguity="resolve")
        longest = lark.Lark(grammar, parser="earley", lexer="dynamic")
        deriver = Deriver(longest)
        texts = {}
        tries = 0
        while len(texts) < TEXTS and tries < 40 * TEXTS:
            tries += 1
            text = deriver.text("start")
            if len(text) > 70:
                continue
            if tries % 2:
                text = changed(text)
            if text not in texts:
                texts[text] = [text, takes(complete, text), takes(longest, text)]
        taken = sum(t[1] for t in texts.values())
        print(f"{name}: {len(texts)} texts, {taken} taken, {sum(t[2] for t in texts.values())} by longest matches",
              file=sys.stderr)
        print(json.dumps({"name": name, "grammar": grammar, "texts": list(texts.values())}))


if __name__ == "__main__":
    main()
