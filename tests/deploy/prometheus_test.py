"""deploy/prometheus/: rules and alerts over metrics that exist, and their copy for Kubernetes.

prometheus_test.py --write writes that copy anew.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

from deployment import DEPLOY, RULES, WELL_KNOWN, documented_metrics, faults, load_yaml, read, yaml

TESTS = DEPLOY / "prometheus" / "heddle.rules_test.yaml"
OBJECT = DEPLOY / "kubernetes" / "components" / "monitoring" / "prometheusrule.yaml"
HEADER = """\
# Written by tests/deploy/prometheus_test.py --write from deploy/prometheus/heddle.rules.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: heddle
  labels:
    app.kubernetes.io/name: heddle
spec:
"""


def as_object(rules):
    """The rules as an object of the Prometheus Operator: the same text, two columns further in."""
    body = rules[rules.index("\ngroups:") + 1:]
    return HEADER + "".join("  " + line if line.strip() else line
                            for line in body.splitlines(keepends=True))


class RulesTest(unittest.TestCase):
    def setUp(self):
        self.rules = [rule for group in load_yaml(RULES)["groups"] for rule in group["rules"]]
        self.alerts = [rule for rule in self.rules if "alert" in rule]

    def promtool(self, *arguments):
        if shutil.which("promtool") is None:
            self.skipTest("needs promtool (Debian's package prometheus)")
        done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_every_expression_asks_for_metrics_and_labels_that_exist(self):
        known = {**documented_metrics(), **WELL_KNOWN}
        for rule in self.rules:
            if "record" in rule:
                self.assertTrue(rule["record"].startswith("job:heddle_"), rule["record"])
                known[rule["record"]] = {"outcome"} if "by (namespace, job, outcome)" in rule["expr"] else set()
        found = [fault for rule in self.rules for fault in faults(rule["expr"], known)]
        self.assertEqual(found, [])

    def test_every_recorded_series_is_used_or_one_that_people_ask_for(self):
        text = read(RULES)
        for rule in self.rules:
            if "record" in rule and text.count(rule["record"]) == 1:
                self.assertIn(rule["record"], read(DEPLOY.parent / "docs" / "deployment.md"))

    def test_every_alert_says_what_is_wrong_and_what_to_do(self):
        names = [alert["alert"] for alert in self.alerts]
        self.assertEqual(len(names), len(set(names)))
        for alert in self.alerts:
            with self.subTest(alert["alert"]):
                self.assertTrue(alert["alert"].startswith("Heddle"))
                self.assertIn(alert["labels"]["severity"], ("critical", "warning", "info"))
                self.assertEqual(set(alert["annotations"]), {"summary", "description"})
                self.assertGreater(len(alert["annotations"]["description"]), 60)

    def test_alerts_name_options_and_labels_that_exist(self):
        known = set(documented_metrics()) | {"heddle"}
        for alert in self.alerts:
            text = " ".join(alert["annotations"].values())
            for name in re.findall(r"\bheddle_\w+", text):
                self.assertTrue({name, name + "_count"} & known, f"{alert['alert']}: {name}")

    def test_every_alert_is_tested(self):
        tested = read(TESTS)
        for alert in self.alerts:
            prefix = "HeddleFirstTokensSlow" if "FirstTokens" in alert["alert"] else alert["alert"]
            self.assertIn(prefix, tested)

    def test_kubernetes_has_the_same_rules(self):
        self.assertEqual(read(OBJECT), as_object(read(RULES)),
                         "write it anew: tests/deploy/prometheus_test.py --write")
        self.assertEqual(load_yaml(OBJECT)["spec"], load_yaml(RULES))

    def test_promtool_takes_the_rules(self):
        self.promtool("check", "rules", RULES)

    def test_promtools_unit_tests_pass(self):
        self.promtool("test", "rules", TESTS)


class ExpressionTest(unittest.TestCase):
    """The checks themselves."""

    KNOWN = {"a_total": {"x"}, "b": set()}

    def test_names_are_found(self):
        self.assertEqual(faults('sum by (x, job) (rate(a_total{x=~"y{z}"}[5m])) / on () b > 2', self.KNOWN), [])

    def test_wrong_ones_are_said(self):
        for wrong, word in (("a_totl", "a_totl"), ('b{x="1"}', "label x"), ("sum by (y) (b)", "label y"),
                            ("1 + 2", "no metric")):
            self.assertIn(word, " ".join(faults(wrong, self.KNOWN)), wrong)

    def test_the_copy_keeps_the_structure(self):
        self.assertEqual(yaml.safe_load(as_object("#\ngroups:\n  - name: n\n"))["spec"],
                         {"groups": [{"name": "n"}]})


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        pathlib.Path(OBJECT).write_text(as_object(read(RULES)), encoding="utf-8")
    else:
        unittest.main(verbosity=2)
