"""The load generator against a server that answers at known times."""

import asyncio
import json
import unittest

import load

STEP_S = 0.02


class FakeServer:
    """Sends a token every STEP_S, the first after FIRST_S; or refuses."""

    FIRST_S = 0.06

    def __init__(self, status=200, chunked=True):
        self.status, self.chunked = status, chunked
        self.prompts, self.open, self.most_open = [], 0, 0

    async def handle(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        request = json.loads(await reader.readexactly(length))
        self.prompts.append(request["prompt"])
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        kind = b"Transfer-Encoding: chunked\r\n" if self.chunked else b""
        writer.write(b"HTTP/1.1 %d X\r\n%s\r\n" % (self.status, kind))
        if self.status == 200:
            await self.stream(request["max_tokens"], writer)
        await self.send(writer, b"")
        self.open -= 1
        writer.close()

    async def stream(self, tokens, writer):
        await asyncio.sleep(self.FIRST_S - STEP_S)
        for _ in range(tokens):
            await asyncio.sleep(STEP_S)
            await self.send_event(writer, {"choices": [{"text": "x", "finish_reason": None}]})
        await self.send_event(writer, {"choices": [{"text": "", "finish_reason": "length"}]})
        await self.send_event(writer, {"choices": [], "usage": {"completion_tokens": tokens}})
        await self.send(writer, b"data: [DONE]\n\n")

    async def send_event(self, writer, event):
        await self.send(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    async def send(self, writer, data):
        writer.write(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)
        await writer.drain()


def run_load(fake, *flags):
    async def main():
        server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        options = load.parse(["--server", f"fake=http://127.0.0.1:{port}", "--warmup", "0", *flags])
        servers = [load.Server(name, url=url) for name, url in options.server]
        async with server:
            return await load.run(options, servers) if fake.status == 200 else load.summarize(
                [await load.measure(servers[0].url, options, 1)])

    return asyncio.run(main())


class LoadTest(unittest.TestCase):
    def test_times_and_tokens_are_those_of_the_server(self):
        for chunked in (True, False):
            fake = FakeServer(chunked=chunked)
            report = run_load(fake, "--clients", "4", "--requests", "8", "--output-tokens", "10")
            result = report["servers"]["fake"]
            self.assertEqual((result["requests"], result["failed"]), (8, 0))
            self.assertEqual(result["output_tokens"], 80)
            self.assertEqual(result["tokens_per_event"], 1.0)
            self.assertGreaterEqual(result["ttft_ms"]["p50"], 59)
            self.assertGreaterEqual(result["inter_token_ms"]["p50"], 10)
            # Two rounds of four, of at least 60 + 9 * 20 ms each.
            self.assertGreaterEqual(result["seconds"], 0.48)
            self.assertLessEqual(fake.most_open, 4)

    def test_no_two_prompts_are_alike_and_shared_words_come_first(self):
        fake = FakeServer()
        run_load(fake, "--clients", "8", "--requests", "8", "--output-tokens", "1",
                 "--prompt-words", "30", "--shared-words", "5")
        prompts = [prompt.split() for prompt in fake.prompts[1:]]  # after the probe
        self.assertEqual({len(words) for words in prompts}, {35})
        self.assertEqual(len({tuple(words[:5]) for words in prompts}), 1)
        self.assertEqual(len({tuple(words) for words in prompts}), 8)

    def test_poisson_arrivals_do_not_wait_for_answers(self):
        fake = FakeServer()
        run_load(fake, "--rate", "500", "--requests", "20", "--output-tokens", "5")
        self.assertGreater(fake.most_open, 5)

    def test_refusals_are_counted_and_shown(self):
        result = run_load(FakeServer(status=429), "--clients", "2", "--requests", "3")
        self.assertEqual((result["requests"], result["failed"]), (0, 3))
        self.assertIn("status 429", result["first_error"])

    def test_a_server_that_refuses_for_good_is_not_waited_for(self):
        async def main(fake):
            server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            options = load.parse(["--server", f"fake={url}"])
            async with server:
                await load.Server("fake", url=url).wait_until_ready(options)

        with self.assertRaises(SystemExit) as refused:
            asyncio.run(main(FakeServer(status=404)))
        self.assertIn("status 404", str(refused.exception))

    def test_percentiles_are_ranks(self):
        values = list(range(1, 101))
        self.assertEqual(load.percentile(values, 0.5), 50)
        self.assertEqual(load.percentile(values, 0.99), 99)
        self.assertEqual(load.percentile([3], 0.01), 3)
        self.assertEqual(load.percentile([], 0.5), 0)


if __name__ == "__main__":
    unittest.main()
