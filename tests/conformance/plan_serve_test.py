"""What `heddle plan` promises, `heddle serve` keeps: the same limits, and as many users as fit."""

import concurrent.futures
import json
import subprocess
import unittest

from heddle_server import BINARY, DEMO_MODEL, Server


def plan(*flags):
    command = [str(BINARY), "plan", str(DEMO_MODEL), "--json", "--hardware", "cpu-2core", *flags]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


class PlanServeTest(unittest.TestCase):
    FLAGS = ("--kv-memory", "1MiB", "--max-batch-seqs", "12", "--page-tokens", "8")

    def test_the_server_starts_with_the_limits_of_the_plan(self):
        planned = plan(*self.FLAGS, "--max-context", "500")
        with Server(*self.FLAGS, "--max-context", "500") as server:
            self.assertEqual(server.metric("heddle_kv_pages"), planned["limits"]["num_pages"])
            _, _, tokens = server.request("POST", "/tokenize", {"prompt": "a"})
            context = json.loads(tokens)["max_model_len"]
            self.assertEqual(context, planned["limits"]["max_context"])

    def test_as_many_users_as_fit_are_served_without_a_preemption(self):
        planned = plan(*self.FLAGS, "--context", "100", "--output-tokens", "40")
        users = planned["users_that_fit"]
        self.assertGreater(users, 4)
        with Server(*self.FLAGS) as server:

            def ask(index):
                prompt = [(index * 37 + i * 11) % 500 + 10 for i in range(60)]
                answer = server.complete(prompt, max_tokens=40, ignore_eos=True, temperature=0)
                return answer["usage"]["completion_tokens"]

            with concurrent.futures.ThreadPoolExecutor(users) as pool:
                for tokens in pool.map(ask, range(users * 4)):
                    self.assertEqual(tokens, 40)
            self.assertEqual(server.metric("heddle_preemptions_total"), 0)


if __name__ == "__main__":
    unittest.main()
