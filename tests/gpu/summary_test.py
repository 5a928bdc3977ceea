"""summary.py on made-up results: every goal finds its measurement, and missing ones are said so."""
import io
import json
import os
import tempfile
import unittest
from contextlib import redirect_stdout

import summary

SERVED = {"requests": 1, "output_tok_s": 1000.0, "first_token_ms_p50": 4.0,
          "between_tokens_ms_p50": 4.0, "host_share": 0.01}


def table(bench, serve):
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in (("bench.jsonl", bench), ("serve.jsonl", serve)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
                out.writelines(json.dumps(row) + "\n" for row in rows)
        printed = io.StringIO()
        with redirect_stdout(printed):
            summary.main(folder)
        with open(os.path.join(folder, "summary.json"), encoding="utf-8") as rows:
            return printed.getvalue(), {row["what"]: row["measured"] for row in json.load(rows)}


class SummaryTest(unittest.TestCase):
    def test_every_goal_finds_its_measurement(self):
        bench = [{"device": "d", "copy_TB_per_s": 4.3, "matmul_TFLOP_per_s": 790.0}]
        bench += [{"name": f"linear {w} 8192 x 8192, 16 rows", "us": us, "TB_per_s": 1.0,
                   "share": 0.5} for w, us in (("bf16", 40.0), ("q4_0", 10.0))]
        bench += [{"name": f"decode attention bf16, 64 sequences of {n}", "us": 1.0,
                   "TB_per_s": 1.0, "share": 0.9} for n in (1024, 8192)]
        bench.append({"choice": "bf16 8192 x 8192, 33 to 64 rows: library 40.0 us, mixed 41.0 us"})
        bench.append({"name": "prefill attention bf16, 16384 tokens", "us": 1.0,
                      "TFLOP_per_s": 600.0, "share": 0.7})
        serve = [{"model": "llama-3.1-8b bf16", "load_s": 6.0}]
        for weights in ("bf16", "q4_0", "fp8"):
            for load in ["16/256/1", "200/1/20@5", "128/256/256"] + [
                    lengths + "/64" for lengths in summary.PROMPTS]:
                settled = {**SERVED, "host_share": 0.5}
                serve.append({"name": f"llama-3.1-8b {weights} {load}:settled", **settled})
                serve.append({"name": f"llama-3.1-8b {weights} {load}", **SERVED})
        printed, measured = table(bench, serve)
        self.assertNotIn("not measured", printed)
        self.assertIn("\nbf16 8192 x 8192, 33 to 64 rows: library 40.0 us, mixed 41.0 us\n", printed)
        self.assertEqual(measured["4-bit product at 16 rows"], 4.0)
        self.assertEqual(measured["8B BF16, one stream"], 250.0)
        self.assertEqual(measured["prefill attention, 16384 tokens"], 600.0)
        self.assertEqual(measured["offline 8B FP8 5000/500"], 1000.0)
        self.assertEqual(measured["host share of a step at 256 sequences"], 1.0)
        lines = {line[:40].strip(): line for line in printed.splitlines()}
        self.assertTrue(lines["start, 8B BF16"].endswith("met"))
        self.assertTrue(lines["8B BF16, one stream"].endswith("missed"))

    def test_what_was_not_measured_is_said(self):
        printed, measured = table([], [])
        self.assertEqual(printed.count("not measured"), len(measured))


if __name__ == "__main__":
    unittest.main()
