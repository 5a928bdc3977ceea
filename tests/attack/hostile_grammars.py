"""Grammars, expressions and schemas that somebody sends to keep the server busy, beside a plain stream.

    hostile_grammars.py [--clients 6] [--seconds 6] [--schemas 60] [--goal-ms 100] [--only PART[,PART]]

Parts: `each` (every hostile form by itself, beside a stream: the stream's longest gap, and how each was answered), `crowd`
(many at once, abandoned, with small schemas of another client between them), `memory` (distinct small schemas: what
stays resident levels off), `hundred` (100 clients at once, each with a schema that takes the whole budget, beside small new
schemas of another client), `stop` (SIGTERM while the hundred compile). Large by hand: --clients 100 --seconds 60
--schemas 400.
"""

import argparse
import json
import pathlib
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "load"))

from common import Daemon, allow_descriptors  # noqa: E402  (the folder of the load tests)

DRAIN_SECONDS = 2


def chain(length, body):
    rules = ["root ::= r0"] + [f"r{i} ::= " + body.replace("%", f"r{i + 1}") for i in range(length)]
    return "\n".join([*rules, f'r{length} ::= "a"']) + "\n"


def uri_schema(salt):
    fields = {f"p{i}": {"type": "string", "format": "uri", "maxLength": 90 + i + salt} for i in range(8)}
    return {"type": "object", "properties": fields, "required": list(fields)}


def costly_schema(salt):
    """Takes the whole budget of a compilation, and is refused."""
    return {"type": "object", "properties": {f"p{salt}": {"type": "string", "pattern": "^(a|b)*a(a|b){24}$"}}}


def small_schema(salt):
    return {"type": "object", "properties": {f"key{salt}": {"type": "integer"}}, "required": [f"key{salt}"]}


def many_rules(count):
    return "root ::= r0\n" + "".join(
        f"r{i} ::= " + " | ".join(f'"a" r{k} r{k}?' for k in range(count) if k != i) + ' | [a-z]?\n' for i in range(count))


# name: the field of /v1/completions and its value.
HOSTILE = {
    "two optional": ("guided_grammar", chain(40, '% % | ""')),
    "two questions": ("guided_grammar", chain(40, "%? %?")),
    "nested repeats": ("guided_grammar", chain(12, "((%? %?)* %?)*")),
    "nested groups": ("guided_grammar", "root ::= " + "(" * 8 + '"a"? s?' + ")* s?" * 8 + '\ns ::= ("a"? t? "b"?)*\nt ::= "a" s? | s "a"?'),
    "palindromes": ("guided_grammar", chain(20, '"a" % "a" | % | "a" %? %?')),
    "any of any": ("guided_grammar", 'root ::= (s? s?)* "!"\ns ::= (a? b? c?)* | "x" s "y"\na ::= [a-m] | [a-z] b? | "x" a? b?\n'
                   'b ::= [f-z] | [a-z] c? a? | "x" b? c?\nc ::= [c-t] | [a-z] b? | "x" c? a? s?\n'),
    "itself in many ways": ("guided_grammar", 'root ::= r\nr ::= [a-z ] | [a-z ] r | [a-z ] r r | [a-z ] r r r | [a-z ] r? r? r? r?\n'),
    "all call all": ("guided_grammar", many_rules(40)),
    # Compiles, and runs into the bound on what may follow a token.
    "too ambiguous": ("guided_grammar", r"""root ::= [a-z ] [^x] r6
r1 ::= [a-z ] "b"* r4 | [a-z] r0+ | [a-z] r6* | ""
r0 ::= [a-z ] [^x] r6
r2 ::= r6 | "a"+ | r3 | (r5{0,9} | r5*) | [a-z] ((r5? r5 r3*)?)* | (r4 "a"{0,9}){0,9} | r3? | [a-z] r1*
r3 ::= "a" [a-z ]+ | r5* | r6+ | (r6 r5 "b"* "a"+) | r5+
r4 ::= ((r5{0,9})*){0,9} ((r5 | ([^x] "b"){0,9}) r5 r6 r5*){0,9} | (r5+ r6? (r6* r6 [a-z]?)){0,9} r5{0,9} r5{0,9} | ""
r5 ::= r6 | [a-z] r5 r1+ r0 (r5+ (r1 | r1? | r2)?)+ | [a-z] r6* | "a" [a-z]+ ((r4{0,9} r5)+) (r5 | (r4{0,9} | "a"+ | [^x]{0,9} | "b"?)* | r3) | ""
r6 ::= [^x]? ("a"*) (("a" | "a"? | ([^x] [a-z ]* [^x] [^x]*)* | ([a-z ]* "a"{0,9} "b")?)+ | "a"{0,9}){0,9} | ("a"*) ("a" | [^x])+ "a" | [a-z ] r2 | [a-z ] ([a-z ]+ | [a-z ]*) (r5+){0,9} r1 | ""
"""),
    "left recursion": ("guided_grammar", 'root ::= x? root "a" | "b"\nx ::= y?\ny ::= "z" | x'),
    "templates without end": ("guided_grammar", 'start: a{"x"}\na{x}: b{x} "y"\nb{x}: a{c{x}}\nc{x}: x'),
    "optional parts": ("guided_grammar", "start: " + '["a"] ' * 2000),
    "rules in a circle": ("guided_grammar", "start: r0\n" + "".join(f'r{i}: r{i + 1}? "a"?\n' for i in range(3000))
                          + 'r3000: start? "b"\n%ignore " "'),
    "repeats of repeats": ("guided_grammar", 'start: ((("a" ~ 60000) ~ 60000) ~ 60000)'),
    "exponential expression": ("guided_regex", "(a|b)*a(a|b){24}"),
    "nested counts": ("guided_regex", "((a?){300}){300}"),
    "uris": ("guided_json", uri_schema(0)),
    "alternatives": ("guided_json", {"allOf": [{"anyOf": [{}, {}, {}]}] * 40 + [False]}),
    "references": ("guided_json", {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + 1) % 30}"}] * 3 + [{"type": "null"}]}
                                             for i in range(30)}, "$ref": "#/$defs/d0"}),
}


class Stream(threading.Thread):
    """A plain stream, again and again; when each of its tokens came."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.server = daemon
        self.ended = False
        self.times = []
        self.error = None
        self.start()

    def run(self):
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}
        try:
            while not self.ended:
                for event in self.server.stream("/v1/completions", body):
                    if event != "[DONE]" and not self.ended:
                        self.times.append(time.monotonic())
                    if self.ended:
                        return
        except Exception as error:  # told by whoever looks at the stream
            self.error = error

    def longest_gap(self, begin, end):
        inside = [begin] + [t for t in list(self.times) if begin < t < end] + [end]
        return max(b - a for a, b in zip(inside, inside[1:]))

    def rate(self, begin, end):
        return sum(begin < t < end for t in list(self.times)) / (end - begin)


def ask(daemon, field, value, timeout=60, tokens=24):
    """(status, seconds, text) of one request that is held to a form."""
    began = time.monotonic()
    status, _, text = daemon.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": tokens, field: value}, timeout)
    return status, time.monotonic() - began, text


def send_and_leave(daemon, field, value, patience):
    body = json.dumps({"prompt": "a", "max_tokens": 400, field: value}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=patience) as client:
        client.sendall(head.encode() + body)
        try:
            client.recv(4096)
        except (TimeoutError, OSError):
            pass


def check(condition, message, failures):
    print(("  ok: " if condition else "  FAILED: ") + message, flush=True)
    if not condition:
        failures.append(message)


def each(daemon, _options, failures):
    stream = Stream(daemon)
    time.sleep(1)
    begin = time.monotonic()
    time.sleep(2)
    print(f"  the stream alone: {stream.rate(begin, time.monotonic()):.0f} tokens/s, longest gap "
          f"{stream.longest_gap(begin, time.monotonic()) * 1000:.0f} ms")
    for name, (field, value) in HOSTILE.items():
        begin = time.monotonic()
        status, seconds, text = ask(daemon, field, value)
        gap = stream.longest_gap(begin, time.monotonic())
        said = json.loads(text).get("error", {}).get("message", "")[:110] if status != 200 else ""
        check(status in (200, 400) and gap < 1.5 and seconds < 30 and "not numbers" not in said,
              f"{name}: {status} after {seconds:.2f} s, longest gap of the stream {gap * 1000:.0f} ms {said}", failures)
    stream.ended = True
    check(stream.error is None, f"the stream had no error ({stream.error})", failures)


def crowd(daemon, options, failures):
    stream = Stream(daemon)
    end = time.monotonic() + options.seconds

    def attack(number):
        names = list(HOSTILE)
        turn = number
        while time.monotonic() < end:
            field, value = HOSTILE[names[turn % len(names)]]
            if field == "guided_grammar":
                value += "\n" * (turn % 50)  # not what was refused before
            if names[turn % len(names)] == "uris":
                value = uri_schema(turn)
            turn += options.clients + 1
            try:
                send_and_leave(daemon, field, value, 0.5)
            except OSError:
                time.sleep(0.05)

    threads = [threading.Thread(target=attack, args=(i,), daemon=True) for i in range(options.clients)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    begin = time.monotonic()
    waits = []
    number = 0
    while time.monotonic() < end:
        number += 1
        status, seconds, text = ask(daemon, "guided_json", small_schema(number), tokens=1)
        check(status == 200, f"a small schema is answered ({status})", failures) if status != 200 else None
        waits.append(seconds)
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    waits.sort()
    gap = stream.longest_gap(begin, time.monotonic())
    stream.ended = True
    print(f"  {len(waits)} small schemas, one token each: median {waits[len(waits) // 2] * 1000:.0f} ms, worst "
          f"{waits[-1] * 1000:.0f} ms; the stream's longest gap {gap * 1000:.0f} ms")
    check(waits[-1] < 2, "no small schema waits for 2 s", failures)
    check(gap < 2, "the stream goes on", failures)
    check(daemon.request("GET", "/ready")[0] == 200, "/ready is 200 afterwards", failures)


def memory(daemon, options, failures):
    ask(daemon, "guided_json", {"type": "integer"})
    sizes = [daemon.memory_mib()]
    for number in range(options.schemas):
        schema = {"type": "object", "properties": {
            f"name{number}": {"type": "string"}, f"age{number}": {"type": "integer", "minimum": 0, "maximum": 100 + number},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 10 + number % 50}}},
            "required": [f"name{number}", f"age{number}", "tags"]}
        status, _, text = ask(daemon, "guided_json", schema)
        assert status == 200, text
        if number + 1 in (options.schemas // 10, options.schemas // 2, options.schemas):
            time.sleep(1)
            sizes.append(daemon.memory_mib())
            print(f"  after {number + 1} schemas: {sizes[-1]:.0f} MiB resident, "
                  f"{daemon.metric('heddle_grammar_bytes') / 2**20:.1f} MiB in {daemon.metric('heddle_grammars'):.0f} grammars")
    check(sizes[-1] - sizes[0] < options.cache_mib + 150,
          f"{options.schemas} schemas take {sizes[-1] - sizes[0]:.0f} MiB, the cache may have {options.cache_mib}", failures)


def send_hundred(daemon, first, patience):
    """100 clients that wait for schemas of their own."""
    for i in range(100):
        arguments = (daemon, "guided_json", costly_schema(first + i), patience)
        threading.Thread(target=send_and_leave, args=arguments, daemon=True).start()


def hundred(daemon, options, failures):
    """Limits are parts of what one of the hundred takes alone, for machines differ."""
    def small(first, count):
        times = []
        for i in range(first, first + count):
            status, seconds, text = ask(daemon, "guided_json", small_schema(i), tokens=1)
            if status != 200:
                check(False, f"a small schema is answered ({status}: {text[:200]})", failures)
            times.append(seconds)
        return sorted(times)

    status, costly, _ = ask(daemon, "guided_json", costly_schema(0))
    check(status == 400, f"the costly schema is refused after {costly:.2f} s", failures)
    alone = small(10_000, 20)
    send_hundred(daemon, 1, 4)
    time.sleep(0.5)
    begin = time.monotonic()
    beside = small(20_000, 20)
    check(time.monotonic() - begin < 3.5, "the hundred were still there", failures)
    print(f"  a small schema and one token: alone {alone[10] * 1000:.1f} ms, worst {alone[-1] * 1000:.0f}; beside 100 schemas "
          f"of {costly * 1000:.0f} ms each {beside[10] * 1000:.1f} ms, worst {beside[-1] * 1000:.0f}")
    check(beside[10] < costly / 10, "the median is below a tenth of one costly schema", failures)
    check(beside[-1] < costly, "nobody waits for as long as one costly schema takes", failures)
    if options.goal_ms:
        check(beside[-1] * 1000 < options.goal_ms, f"no small schema takes {options.goal_ms} ms", failures)
    time.sleep(4)  # for the hundred to leave


def stop(daemon, options, failures):
    send_hundred(daemon, 1000, 30)
    time.sleep(0.5)
    began = time.monotonic()
    status = daemon.stop(signal.SIGTERM, timeout=DRAIN_SECONDS + 30)
    seconds = time.monotonic() - began
    check(status == 0 and seconds < options.end_seconds,
          f"SIGTERM ended the server after {seconds:.2f} s with {status}; the drain timeout is {DRAIN_SECONDS} s", failures)


PARTS = {"each": each, "crowd": crowd, "memory": memory, "hundred": hundred, "stop": stop}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--schemas", type=int, default=60)
    parser.add_argument("--cache-mib", type=int, default=64)
    parser.add_argument("--end-seconds", type=float, default=DRAIN_SECONDS + 1, help="from SIGTERM to the end")
    parser.add_argument("--goal-ms", type=float, default=0, help="of a small schema beside the hundred; 0: no goal")
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    allow_descriptors()
    failures = []
    flags = ["--drain-timeout", str(DRAIN_SECONDS), "--grammar-cache-bytes", f"{options.cache_mib}MiB"]
    with Daemon(*flags) as daemon:
        for part in options.only.split(","):
            print(f"{part}:", flush=True)
            PARTS[part](daemon, options, failures)
            if part != "stop" and daemon.process.poll() is not None:
                failures.append(f"the server ended during {part}: {daemon.log[-5:]}")
                break
    print(f"{len(failures)} failures" if failures else "all held")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
