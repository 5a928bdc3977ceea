#!/usr/bin/env python3
"""Drives OpenAI-compatible completion servers and compares them. Standard library only.

Each request is a streamed POST /v1/completions with a prompt of random words (no two alike, unless
--shared-words) and a fixed number of output tokens. N clients ask again when they are answered
(--clients), or requests come at random moments (--rate, Poisson).

    load.py --start ours='build/heddle serve model.gguf --port {port}' \\
            --start peer='llama-server -m model.gguf --port {port} -np 16 -c 8192' --clients 16

Servers are measured in turn, --rounds times each, while the others are idle. The first one named is
compared with the second: ratios above 1 are in its favour.
"""

import argparse
import asyncio
import json
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse

WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law "
    "car city community name president team minute idea body information back parent face level "
    "office door health person art war history party result change morning reason research girl "
    "moment air teacher force education foot boy age policy music market sense nation plan college"
).split()


def percentile(values, share):
    """The smallest value that `share` of all do not exceed; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = max(1, -(-int(share * 1e6) * len(ordered) // 1_000_000))  # the ceiling, exactly
    return ordered[min(rank, len(ordered)) - 1]


def spread(seconds):
    ms = [1e3 * value for value in seconds]
    mean = sum(ms) / len(ms) if ms else 0.0
    return {"mean": mean, "p50": percentile(ms, 0.5), "p90": percentile(ms, 0.9),
            "p99": percentile(ms, 0.99), "max": max(ms, default=0.0)}


class Answer:
    """One request's times, in seconds of the monotonic clock."""

    def __init__(self):
        self.sent = time.monotonic()
        self.token_times = []
        self.tokens = 0
        self.done = 0.0
        self.error = ""
        self.refused = False  # for good: with a status of 400 to 428


async def read_body(reader, headers):
    """Yields the body's pieces as they come, of either transfer encoding."""
    if "chunked" not in headers.get("transfer-encoding", ""):
        left = int(headers.get("content-length", 1 << 62))
        while left > 0 and (piece := await reader.read(min(left, 65536))):
            left -= len(piece)
            yield piece
        return
    while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def read_head(reader):
    status = int((await reader.readline()).split()[1])
    headers = {}
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip().lower()
    return status, headers


def take_event(line, answer):
    """Books one line of the event stream."""
    if not line.startswith(b"data:"):
        return
    data = line[5:].strip()
    if data == b"[DONE]":
        return
    event = json.loads(data)
    if event.get("usage"):
        answer.tokens = event["usage"]["completion_tokens"]
    if "error" in event:
        answer.error = str(event["error"])
    if any("text" in choice and not choice.get("finish_reason") or choice.get("text")
           for choice in event.get("choices", [])):
        answer.token_times.append(time.monotonic())


async def ask(url, prompt, options):
    """Sends one request and reads its answer to the end."""
    answer = Answer()
    model = {"model": options.model} if options.model else {}
    body = json.dumps({**model, "prompt": prompt, "max_tokens": options.output_tokens, "stream": True,
                       "stream_options": {"include_usage": True}, "ignore_eos": True,
                       "temperature": 0.8, "seed": 1}).encode()
    head = (f"POST {url.path.rstrip('/')}/v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(url.hostname, url.port or 80)
        writer.write(head + body)
        status, headers = await read_head(reader)
        rest = b""
        async for piece in read_body(reader, headers):
            *lines, rest = (rest + piece).split(b"\n")
            if status == 200:
                for line in lines:
                    take_event(line, answer)
        if status != 200:
            answer.error = f"status {status}: {rest[:200].decode(errors='replace')}"
            answer.refused = 400 <= status < 429
    except (OSError, ValueError, KeyError, IndexError, asyncio.IncompleteReadError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        if writer is not None:
            writer.close()
    answer.done = time.monotonic()
    answer.tokens = answer.tokens or len(answer.token_times)
    if not answer.error and not answer.token_times:
        answer.error = "no tokens"
    return answer


def prompts(options, seed):
    generator = random.Random(seed)
    shared = " ".join(random.Random(7).choices(WORDS, k=options.shared_words))
    while True:
        own = " ".join(generator.choices(WORDS, k=options.prompt_words))
        yield f"{shared} {own}".strip()


async def closed_loop(url, options, source):
    answers, left = [], options.requests

    async def client():
        nonlocal left
        while left > 0:
            left -= 1
            answers.append(await ask(url, next(source), options))

    await asyncio.gather(*(client() for _ in range(options.clients)))
    return answers


async def open_loop(url, options, source, seed):
    generator = random.Random(seed)
    tasks = []
    due = time.monotonic()
    for _ in range(options.requests):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(ask(url, next(source), options)))
        due += generator.expovariate(options.rate)
    return await asyncio.gather(*tasks)


async def measure(url, options, seed):
    source = prompts(options, seed)
    for _ in range(options.warmup):
        await ask(url, next(source), options)
    if options.rate:
        return await open_loop(url, options, source, seed)
    return await closed_loop(url, options, source)


def summarize(rounds):
    """Figures over all rounds of one server; each round is a list of answers."""
    good = [answer for answers in rounds for answer in answers if not answer.error]
    bad = [answer.error for answers in rounds for answer in answers if answer.error]
    seconds = sum(max(a.done for a in answers) - min(a.sent for a in answers)
                  for answers in rounds)
    gaps = [later - earlier for answer in good
            for earlier, later in zip(answer.token_times, answer.token_times[1:])]
    tokens = sum(answer.tokens for answer in good)
    events = sum(len(answer.token_times) for answer in good)
    return {
        "requests": len(good),
        "failed": len(bad),
        "first_error": bad[0] if bad else "",
        "seconds": seconds,
        "output_tokens": tokens,
        "output_tok_s": tokens / seconds,
        "requests_per_s": len(good) / seconds,
        "tokens_per_event": tokens / events if events else 0.0,
        "ttft_ms": spread([answer.token_times[0] - answer.sent for answer in good]),
        "inter_token_ms": spread(gaps),
        "request_ms": spread([answer.done - answer.sent for answer in good]),
    }


def compare(ours, peer):
    """Above 1: ours is better."""
    def times(better, worse):
        return worse / better if better else 0.0

    return {
        "output_tok_s": times(peer["output_tok_s"], ours["output_tok_s"]),
        "ttft_p50": times(ours["ttft_ms"]["p50"], peer["ttft_ms"]["p50"]),
        "ttft_p99": times(ours["ttft_ms"]["p99"], peer["ttft_ms"]["p99"]),
        "inter_token_p50": times(ours["inter_token_ms"]["p50"], peer["inter_token_ms"]["p50"]),
        "inter_token_p99": times(ours["inter_token_ms"]["p99"], peer["inter_token_ms"]["p99"]),
    }


class Server:
    """A name and a URL; with a command, the process behind it."""

    def __init__(self, name, url="", command="", ready_seconds=300):
        self.name = name
        self.process = None
        self.log = None
        if command:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            url = f"http://127.0.0.1:{port}"
            self.log = tempfile.TemporaryFile()
            self.process = subprocess.Popen(shlex.split(command.format(port=port)),
                                            stdout=self.log, stderr=subprocess.STDOUT)
        self.url = urllib.parse.urlsplit(url)
        self.ready_seconds = ready_seconds

    async def wait_until_ready(self, options):
        deadline = time.monotonic() + self.ready_seconds
        probe = argparse.Namespace(**{**vars(options), "output_tokens": 1})
        while (answer := await ask(self.url, "a", probe)).error:
            ended = self.process and self.process.poll() is not None
            if ended or answer.refused or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} does not answer: {answer.error}\n{self.log_tail()}")
            await asyncio.sleep(0.2)

    def log_tail(self):
        if not self.log:
            return ""
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


async def run(options, servers):
    rounds = {server.name: [] for server in servers}
    for server in servers:
        await server.wait_until_ready(options)
    for index in range(options.rounds):
        for server in servers:
            rounds[server.name].append(await measure(server.url, options, options.seed + index))
    results = {name: summarize(answers) for name, answers in rounds.items()}
    report = {"clients": options.clients if not options.rate else 0, "rate": options.rate,
              "requests": options.requests, "rounds": options.rounds,
              "prompt_words": options.prompt_words, "shared_words": options.shared_words,
              "output_tokens": options.output_tokens, "servers": results}
    if len(servers) > 1:
        report["ratios"] = compare(results[servers[0].name], results[servers[1].name])
    return report


def table(report):
    lines = [f"{'':14}{'tok/s':>9}{'req/s':>8}   {'TTFT ms p50':>12}{'p90':>8}{'p99':>8}"
             f"   {'between tokens p50':>19}{'p90':>8}{'p99':>8}{'max':>8}{'failed':>8}"]
    for name, result in report["servers"].items():
        ttft, gap = result["ttft_ms"], result["inter_token_ms"]
        lines.append(f"{name:14}{result['output_tok_s']:9.1f}{result['requests_per_s']:8.2f}   "
                     f"{ttft['p50']:12.0f}{ttft['p90']:8.0f}{ttft['p99']:8.0f}   "
                     f"{gap['p50']:19.1f}{gap['p90']:8.1f}{gap['p99']:8.1f}{gap['max']:8.0f}"
                     f"{result['failed']:8}")
        if result["first_error"]:
            lines.append(f"    {result['first_error']}")
    if "ratios" in report:
        ratios = ", ".join(f"{name} {value:.2f}" for name, value in report["ratios"].items())
        lines.append(f"first against second: {ratios}")
    return "\n".join(lines)


def named(text):
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", type=named, action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--start", type=named, action="append", default=[],
                        metavar="NAME=COMMAND", help="{port} in it is replaced by a free one")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second; 0: --clients")
    parser.add_argument("--requests", type=int, default=64, help="per round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--warmup", type=int, default=1, help="requests before each round")
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--shared-words", type=int, default=0, help="in front of every prompt")
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--model", default="", help="name in requests; none: the server's own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="", metavar="FILE", help="also write the figures there")
    options = parser.parse_args(arguments)
    if not options.server and not options.start:
        parser.error("name a server: --server NAME=URL or --start NAME=COMMAND")
    return options


def main(arguments):
    options = parse(arguments)
    servers = []
    try:
        servers += [Server(name, command=command) for name, command in options.start]
        servers += [Server(name, url=url) for name, url in options.server]
        report = asyncio.run(run(options, servers))
    finally:
        for server in servers:
            server.stop()
    print(table(report))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(report, out, indent=1)
    return 1 if any(result["failed"] for result in report["servers"].values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
