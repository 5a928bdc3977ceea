"""deploy/grafana/heddle.json: every query asks for what the server sends."""
import json
import unittest

from deployment import DEPLOY, TARGET_LABELS, documented_metrics, faults, read, selectors

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Metrics that the dashboard leaves out, and why.
NOT_SHOWN = {
    "heddle_prompt_tokens_total",         # of finished requests; the engine's own figures are shown
    "heddle_cached_prompt_tokens_total",
    "heddle_request_prompt_tokens_bucket",  # the shape of a load, for sizing
    "heddle_request_generated_tokens_bucket",
    "heddle_generated_tokens_total",
    "heddle_kv_page_tokens",
    "heddle_kv_cache_info",
    "heddle_adapter_info",                # names, for routers
    "heddle_branch_trees",                # of one API that few clients use
    "heddle_branches",
    "heddle_branches_running",
    "heddle_branch_tokens",
    "heddle_branches_forked_total",
    "heddle_branches_workers_total",
    "heddle_branches_joined_total",
    "heddle_branches_ended_total",
    "heddle_parallel_branches_total",     # of models that think in branches
    "heddle_parallel_tokens_total",
    "heddle_parallel_critical_path_tokens_total",
    "heddle_search_samples_total",        # of one field that few clients use
    "heddle_search_pruned_samples_total",
    "heddle_search_saved_tokens_total",
    "heddle_kept_contexts",
    "heddle_recoveries_total",            # of ranks on several machines
    "process_virtual_memory_bytes",
}


class DashboardTest(unittest.TestCase):
    def setUp(self):
        self.board = json.loads(read(DEPLOY / "grafana" / "heddle.json"))
        self.panels = [panel for panel in self.board["panels"] if panel["type"] != "row"]
        self.queries = [(panel["title"], target["expr"])
                        for panel in self.panels for target in panel["targets"]]

    def test_every_query_asks_for_metrics_and_labels_that_exist(self):
        known = documented_metrics()
        annotations = [("annotation", a["expr"]) for a in self.board["annotations"]["list"] if "expr" in a]
        for title, expression in self.queries + annotations:
            self.assertEqual(faults(expression, known), [], title)

    def test_every_query_follows_the_variables(self):
        for title, expression in self.queries:
            for metric, labels in selectors(expression)[0]:
                self.assertLessEqual({"job", "instance"}, labels, f"{title}: {metric}")
            # The time that a rate looks back on has to hold some samples, whatever the interval of scrapes.
            self.assertEqual(expression.count("["), expression.count("[$__rate_interval]"), title)

    def test_every_metric_is_shown_or_left_out_on_purpose(self):
        shown = {metric for _, expression in self.queries for metric, _ in selectors(expression)[0]}
        missing = {name for name in documented_metrics()
                   if not name.endswith(("_sum", "_count")) and name not in shown}
        self.assertEqual(missing, NOT_SHOWN)

    def test_variables_are_a_data_source_jobs_and_replicas(self):
        variables = {v["name"]: v for v in self.board["templating"]["list"]}
        self.assertEqual(list(variables), ["datasource", "job", "instance"])
        self.assertEqual(variables["datasource"]["type"], "datasource")
        for name in ("job", "instance"):
            query = variables[name]["query"]["query"]
            self.assertIn("heddle_build_info", query)
            self.assertTrue(query.endswith(f", {name})"))
            self.assertEqual(variables[name]["datasource"], DATASOURCE)

    def test_no_panel_names_a_data_source_of_its_own(self):
        for panel in self.panels:
            for part in [panel, *panel["targets"]]:
                self.assertEqual(part["datasource"], DATASOURCE, panel["title"])

    def test_panels_have_their_own_place_and_number(self):
        ids = [panel["id"] for panel in self.board["panels"]]
        self.assertEqual(len(ids), len(set(ids)))
        taken = set()
        for panel in self.board["panels"]:
            at = panel["gridPos"]
            self.assertLessEqual(at["x"] + at["w"], 24)
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                     for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells

    def test_a_label_in_a_legend_is_one_that_the_result_has(self):
        known = documented_metrics()
        for panel in self.panels:
            for target in panel["targets"]:
                legend = target["legendFormat"]
                if not legend.startswith("{{"):
                    continue
                label = legend.strip("{}")
                used, grouped = selectors(target["expr"])
                metric = used[0][0]
                aggregated = "sum" in target["expr"]
                has = grouped if aggregated else known[metric] | TARGET_LABELS
                self.assertIn(label, has, panel["title"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
