"""deploy/kubernetes/: what Kustomize makes of it, against what the server is."""
import functools
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from deployment import (DEPLOY, documented_metrics, drain_seconds, faults, get_routes, heddle_takes,
                        load_yaml, options, read, served_ports, yaml)

ROOT = DEPLOY / "kubernetes"
OVERLAYS = ("cpu", "cuda", "demo")
COMPONENTS = ("autoscaling", "inference-pool", "monitoring", "no-api-keys", "rank-tls")
DIGEST = "sha256:" + "0123456789abcdef" * 4
# As docs/deployment.md has it: an overlay of the user's own, with everything that there is.
OWN_OVERLAY = """
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../cuda]
components: [{components}]
nameSuffix: -qwen3
images:
  - {{name: heddle, newName: registry.example.org/heddle, digest: "{digest}"}}
labels:
  - pairs: {{app.kubernetes.io/instance: qwen3}}
    includeSelectors: true
configMapGenerator:
  - name: heddle-config
    behavior: replace
    files: [heddle.yaml]
"""


def kustomize(folder):
    tool = shutil.which("kustomize")
    command = [tool, "build"] if tool else ["kubectl", "kustomize"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{folder}: {done.stderr}")
    return Rendered(list(yaml.safe_load_all(done.stdout)))


class Rendered:
    def __init__(self, objects):
        self.objects = objects

    def one(self, kind):
        found = [o for o in self.objects if o["kind"] == kind]
        assert len(found) == 1, f"{len(found)} of the kind {kind}"
        return found[0]

    @property
    def pod(self):
        return self.one("Deployment")["spec"]["template"]["spec"]

    @property
    def pod_labels(self):
        return self.one("Deployment")["spec"]["template"]["metadata"]["labels"]

    @property
    def container(self):
        assert len(self.pod["containers"]) == 1
        return self.pod["containers"][0]

    @property
    def environment(self):
        return {entry["name"]: entry for entry in self.container.get("env", [])}

    @property
    def config(self):
        return yaml.safe_load(self.one("ConfigMap")["data"]["heddle.yaml"])


def for_each(test):
    """Runs the test on every overlay."""
    @functools.wraps(test)
    def run(self):
        for name, rendered in self.rendered.items():
            with self.subTest(name):
                test(self, rendered)
    return run


@unittest.skipUnless(shutil.which("kustomize") or shutil.which("kubectl"), "needs kustomize or kubectl")
class KustomizeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rendered = {name: kustomize(ROOT / "overlays" / name) for name in OVERLAYS}
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder, "kubernetes")
            shutil.copytree(ROOT, copy)
            own = copy / "overlays" / "own"
            own.mkdir()
            shutil.copy(ROOT / "base" / "heddle.yaml", own)
            paths = ", ".join(f"../../components/{name}" for name in COMPONENTS if name not in ("no-api-keys", "rank-tls"))
            own.joinpath("kustomization.yaml").write_text(OWN_OVERLAY.format(components=paths, digest=DIGEST))
            cls.rendered["own"] = cls.own = kustomize(own)

    def test_every_folder_is_rendered_here(self):
        self.assertEqual(sorted(p.name for p in (ROOT / "overlays").iterdir()),
                         sorted((*OVERLAYS, "multi-node")))
        self.assertEqual(sorted(p.name for p in (ROOT / "components").iterdir()), sorted(COMPONENTS))

    @for_each
    def test_ports_are_those_of_the_configuration(self, r):
        ports = {p["name"]: p["containerPort"] for p in r.container["ports"]}
        self.assertEqual(ports, served_ports(r.config))
        service = r.one("Service")["spec"]["ports"]
        self.assertEqual({p["name"]: p["port"] for p in service}, ports)
        for port in service:
            self.assertEqual(port["targetPort"], port["name"])
        (rule,) = r.one("NetworkPolicy")["spec"]["ingress"]
        self.assertEqual({p["port"] for p in rule["ports"]}, set(ports))

    @for_each
    def test_clients_are_named_and_nobody_is_called(self, r):
        policy = r.one("NetworkPolicy")["spec"]
        self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
        self.assertNotIn("egress", policy)
        for rule in policy["ingress"]:
            self.assertTrue(rule["from"])
            for source in rule["from"]:  # one of both: together they would mean "and"
                ((_, selector),) = source.items()
                # No label of an overlay besides, which clients do not have.
                self.assertEqual(selector, {"matchExpressions": [
                    {"key": "heddle-client", "operator": "In", "values": ["true"]}]})

    @for_each
    def test_probes_ask_what_the_server_answers_without_a_key(self, r):
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = r.container[probe]["httpGet"]
            self.assertIn(asked["path"], get_routes())
            self.assertEqual(asked["port"], "http")
        self.assertEqual(r.container["readinessProbe"]["httpGet"]["path"], "/ready")
        # Nothing that a drain or a long queue turns to 503 may restart the container.
        self.assertEqual(r.container["livenessProbe"]["httpGet"]["path"], "/health")

    @for_each
    def test_the_grace_period_exceeds_the_drain(self, r):
        self.assertGreater(r.config["drain-delay"], 0)
        self.assertGreaterEqual(r.pod["terminationGracePeriodSeconds"],
                                drain_seconds(r.config) + 10)

    @for_each
    def test_a_rollout_is_given_as_long_as_loading_may_take(self, r):
        probe = r.container["startupProbe"]
        allowed = probe["periodSeconds"] * probe["failureThreshold"]
        self.assertGreaterEqual(allowed, 1800)
        self.assertGreater(r.one("Deployment")["spec"]["progressDeadlineSeconds"], allowed)

    @for_each
    def test_every_key_and_variable_is_an_option_of_serve(self, r):
        known = options()
        self.assertGreater(len(known), 50)
        by_variable = {"HEDDLE_" + name.upper().replace("-", "_"): name for name in known}
        for key in r.config:
            self.assertIn("serve", known.get(key, []), key)
        for name in r.environment:
            self.assertIn("serve", known[by_variable[name]], name)

    def test_heddle_takes_the_configuration(self):
        heddle_takes(self, ROOT / "base" / "heddle.yaml")

    @for_each
    def test_the_configuration_is_where_the_container_looks(self, r):
        self.assertEqual(r.container["args"], ["--config", "/etc/heddle/heddle.yaml"])
        mounts = {m["name"]: m["mountPath"] for m in r.container["volumeMounts"]}
        self.assertEqual(mounts["config"], "/etc/heddle")
        volume = next(v for v in r.pod["volumes"] if v["name"] == "config")
        self.assertEqual(volume["configMap"]["name"], r.one("ConfigMap")["metadata"]["name"])
        self.assertTrue(all(m["readOnly"] for m in r.container["volumeMounts"]))
        self.assertEqual(set(mounts), {v["name"] for v in r.pod["volumes"]})

    def test_models_are_where_the_configuration_says(self):
        for name, r in self.rendered.items():
            mounts = {m["name"]: m["mountPath"] for m in r.container["volumeMounts"]}
            if name == "demo":
                # Where the package in the image has it (packages_test.py).
                self.assertEqual(r.environment["HEDDLE_MODEL"]["value"], "/usr/share/heddle/demo-model")
                self.assertNotIn("models", mounts)
            else:
                self.assertTrue(r.config["model"].startswith(mounts["models"] + "/"))

    @for_each
    def test_service_links_are_off(self, r):
        # A Service named heddle would give HEDDLE_PORT=tcp://... and others.
        self.assertIs(r.pod["enableServiceLinks"], False)

    @for_each
    def test_pods_have_no_rights(self, r):
        self.assertTrue(r.pod["securityContext"]["runAsNonRoot"])
        self.assertEqual(r.pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
        self.assertEqual(r.container["securityContext"],
                         {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                          "capabilities": {"drop": ["ALL"]}})
        self.assertIs(r.pod["automountServiceAccountToken"], False)
        self.assertIs(r.one("ServiceAccount")["automountServiceAccountToken"], False)
        self.assertEqual(r.pod["serviceAccountName"], r.one("ServiceAccount")["metadata"]["name"])

    @for_each
    def test_selectors_choose_these_pods_and_no_others(self, r):
        spec = {kind: r.one(kind)["spec"]
                for kind in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy")}
        wanted = {k: v for k, v in r.pod_labels.items()
                  if k in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}
        self.assertIn("app.kubernetes.io/name", wanted)
        self.assertEqual(spec["Deployment"]["selector"], {"matchLabels": wanted})
        self.assertEqual(spec["Service"]["selector"], wanted)
        self.assertEqual(spec["PodDisruptionBudget"]["selector"], {"matchLabels": wanted})
        self.assertEqual(spec["NetworkPolicy"]["podSelector"], {"matchLabels": wanted})
        spread = r.pod["topologySpreadConstraints"][0]["labelSelector"]
        self.assertEqual(spread, {"matchLabels": wanted})

    @for_each
    def test_resources_are_limited_and_whole(self, r):
        resources = r.container["resources"]
        self.assertEqual(resources["requests"], resources["limits"])  # Guaranteed
        self.assertTrue(resources["limits"]["cpu"].isdigit())         # a thread for each
        self.assertIn("memory", resources["limits"])

    def test_a_gpu_is_given_back_before_the_next_pod_asks_for_it(self):
        rolling = self.rendered["cuda"].one("Deployment")["spec"]["strategy"]["rollingUpdate"]
        self.assertEqual(rolling, {"maxSurge": 0, "maxUnavailable": 1})
        limits = self.rendered["cuda"].container["resources"]["limits"]
        self.assertEqual(limits["nvidia.com/gpu"], "1")
        self.assertEqual(self.rendered["cuda"].environment["HEDDLE_DEVICE"]["value"], "cuda")
        rolling = self.rendered["cpu"].one("Deployment")["spec"]["strategy"]["rollingUpdate"]
        self.assertEqual(rolling, {"maxSurge": 1, "maxUnavailable": 0})

    def test_monitoring_finds_the_service(self):
        monitor = self.own.one("ServiceMonitor")["spec"]
        labels = self.own.one("Service")["metadata"]["labels"]
        selector = monitor["selector"]["matchLabels"]
        self.assertLessEqual(selector.items(), labels.items())
        self.assertIn("app.kubernetes.io/instance", selector)  # or two instances are scraped twice
        self.assertEqual([(e["port"], e["path"]) for e in monitor["endpoints"]], [("http", "/metrics")])
        self.assertIn("/metrics", get_routes())

    def test_autoscaling_owns_the_number_of_replicas(self):
        self.assertNotIn("replicas", self.own.one("Deployment")["spec"])
        self.assertEqual(self.own.one("ScaledObject")["spec"]["scaleTargetRef"]["name"],
                         self.own.one("Deployment")["metadata"]["name"])

    def test_autoscaling_asks_for_metrics_that_exist(self):
        scaled = load_yaml(ROOT / "components" / "autoscaling" / "scaledobject.yaml")
        service = load_yaml(ROOT / "base" / "service.yaml")["metadata"]["name"]
        for trigger in scaled["spec"]["triggers"]:
            query = trigger["metadata"]["query"]
            self.assertEqual(faults(query, documented_metrics()), [])
            self.assertEqual(query.count("heddle_"), query.count(f'{{job="{service}"}}'))
            self.assertTrue(all(isinstance(v, str) for v in trigger["metadata"].values()))

    def test_the_pool_is_of_these_pods(self):
        pool = self.own.one("InferencePool")["spec"]
        self.assertLessEqual(pool["selector"]["matchLabels"].items(), self.own.pod_labels.items())
        self.assertIn("app.kubernetes.io/instance", pool["selector"]["matchLabels"])
        self.assertEqual([p["number"] for p in pool["targetPorts"]], [self.own.config["port"]])
        self.assertEqual(self.own.environment["HEDDLE_METRIC_NAMES"]["value"], "vllm")

    @for_each
    def test_keys_are_asked_for_unless_an_overlay_says_so(self, r):
        mounts = {m["name"]: m["mountPath"] for m in r.container["volumeMounts"]}
        volumes = {v["name"]: v for v in r.pod["volumes"]}
        if r is self.rendered["demo"]:
            self.assertNotIn("HEDDLE_API_KEY_FILE", r.environment)
            self.assertNotIn("api-keys", {**mounts, **volumes})
            return
        path = r.environment["HEDDLE_API_KEY_FILE"]["value"]
        self.assertEqual(path, mounts["api-keys"] + "/keys.txt")
        secret = volumes["api-keys"]["secret"]
        self.assertFalse(secret.get("optional", False))  # no Secret, no server
        # Readable for the group that the pod runs with, and for nobody else.
        self.assertEqual(secret["defaultMode"], 0o440)
        self.assertEqual(r.pod["securityContext"]["fsGroup"], r.pod["securityContext"]["runAsGroup"])

    def test_an_image_can_be_named_by_its_digest(self):
        self.assertEqual(self.own.container["image"], f"registry.example.org/heddle@{DIGEST}")


@unittest.skipUnless(shutil.which("kustomize") or shutil.which("kubectl"), "needs kustomize or kubectl")
class MultiNodeTest(unittest.TestCase):
    """Groups of pods that share a model, with a LeaderWorkerSet in place of the Deployment."""

    @classmethod
    def setUpClass(cls):
        cls.r = kustomize(ROOT / "overlays" / "multi-node")
        cls.base = kustomize(ROOT / "overlays" / "cpu")
        cls.set = cls.r.one("LeaderWorkerSet")
        template = cls.set["spec"]["leaderWorkerTemplate"]
        cls.template = template
        cls.pods = {name: template[name + "Template"] for name in ("leader", "worker")}

    def container(self, name):
        (container,) = self.pods[name]["spec"]["containers"]
        return container

    def environment(self, name):
        return {e["name"]: e["value"] for e in self.container(name)["env"]}

    def by_name(self, kind, name):
        (found,) = [o for o in self.r.objects if o["kind"] == kind and o["metadata"]["name"] == name]
        return found["spec"]

    def test_the_set_takes_the_place_of_the_deployment(self):
        self.assertNotIn("Deployment", [o["kind"] for o in self.r.objects])
        self.assertEqual(self.template["restartPolicy"], "RecreateGroupOnPodRestart")
        # A head that has to be ready before others start would wait for them, and they for it.
        self.assertEqual(self.set["spec"]["startupPolicy"], "LeaderCreated")

    def test_a_group_has_as_many_pods_as_the_head_waits_for(self):
        head = self.environment("leader")
        world = int(head.get("HEDDLE_TP", 1)) * int(head.get("HEDDLE_PP", 1))
        self.assertGreater(world, 1)
        self.assertEqual(self.template["size"], world)
        self.assertNotIn("HEDDLE_TP", self.environment("worker"))

    def test_ranks_join_where_the_head_listens(self):
        port = self.environment("leader")["HEDDLE_RANKS_LISTEN"].rsplit(":")[-1]
        args = self.container("worker")["args"]
        self.assertEqual(args[args.index("--join") + 1], f"$(LWS_LEADER_ADDRESS):{port}")
        self.assertIn({"name": "ranks", "containerPort": int(port)}, self.container("leader")["ports"])
        headless = self.by_name("Service", self.set["metadata"]["name"])  # the pods' subdomain
        self.assertEqual(headless["clusterIP"], "None")
        self.assertIs(headless["publishNotReadyAddresses"], True)

    def test_a_component_gives_both_certificates(self):
        (patch,) = load_yaml(ROOT / "components" / "rank-tls" / "kustomization.yaml")["patches"]
        operations = yaml.safe_load(patch["patch"])
        source = load_yaml(ROOT / "overlays" / "multi-node" / "leaderworkerset.yaml")
        self.assertEqual(patch["target"], {"kind": source["kind"], "name": source["metadata"]["name"]})
        for operation in operations:
            self.assertEqual(operation["op"], "add")
            place = source
            *path, last = operation["path"].strip("/").split("/")
            for key in path:
                place = place[int(key) if isinstance(place, list) else key]
            self.assertEqual(last, "-")
            place.append(operation["value"])
        for name in self.pods:
            pod = source["spec"]["leaderWorkerTemplate"][name + "Template"]["spec"]
            (container,) = pod["containers"]
            environment = {e["name"]: e["value"] for e in container["env"]}
            (mount,) = [m for m in container["volumeMounts"] if m["name"] == "rank-tls"]
            (volume,) = [v for v in pod["volumes"] if v["name"] == "rank-tls"]
            self.assertEqual(volume["secret"], {"secretName": "heddle-rank-tls", "defaultMode": 0o440})
            for what in ("CERT", "KEY", "CA"):
                self.assertIn(f"rank-tls-{what.lower()}", options())
                self.assertTrue(environment[f"HEDDLE_RANK_TLS_{what}"].startswith(mount["mountPath"] + "/"))

    def test_both_have_the_token_and_one_configuration(self):
        known = options()
        config = self.r.one("ConfigMap")["metadata"]["name"]
        for name, pod in self.pods.items():
            with self.subTest(name):
                mounts = {m["name"]: m for m in self.container(name)["volumeMounts"]}
                volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
                self.assertEqual(set(mounts), set(volumes))
                self.assertTrue(all(m["readOnly"] for m in mounts.values()))
                self.assertEqual(volumes["config"]["configMap"]["name"], config)
                secret = volumes["rank-token"]["secret"]
                self.assertFalse(secret.get("optional", False))
                self.assertEqual(secret["defaultMode"], 0o440)
                self.assertTrue(self.environment(name)["HEDDLE_RANK_TOKEN_FILE"]
                                .startswith(mounts["rank-token"]["mountPath"] + "/"))
                for variable in self.environment(name):
                    if variable.startswith("HEDDLE_"):
                        self.assertIn(variable[len("HEDDLE_"):].lower().replace("_", "-"), known)

    def test_pods_are_as_those_of_one_machine(self):
        base = self.base.pod
        for name, pod in self.pods.items():
            with self.subTest(name):
                for key in ("securityContext", "serviceAccountName", "automountServiceAccountToken",
                            "enableServiceLinks", "terminationGracePeriodSeconds"):
                    self.assertEqual(pod["spec"][key], base[key], key)
                for key in ("image", "securityContext", "resources"):
                    self.assertEqual(self.container(name)[key], self.base.container[key], key)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(self.container("leader")[probe], self.base.container[probe])
            self.assertNotIn(probe, self.container("worker"))  # it has no port for them

    def test_clients_reach_heads_alone(self):
        selector = self.by_name("Service", "heddle")["selector"]
        self.assertEqual(selector["leaderworkerset.sigs.k8s.io/worker-index"], "0")
        del selector["leaderworkerset.sigs.k8s.io/worker-index"]
        self.assertLessEqual(selector.items(), self.pods["leader"]["metadata"]["labels"].items())

    def test_ranks_alone_reach_each_other(self):
        policy = self.by_name("NetworkPolicy", "heddle-ranks")
        labels = self.pods["leader"]["metadata"]["labels"]
        self.assertEqual(labels, self.pods["worker"]["metadata"]["labels"])
        own = [{"podSelector": {"matchLabels": labels}}]
        self.assertEqual(policy["podSelector"], own[0]["podSelector"])
        self.assertEqual(policy["ingress"], [{"from": own}])  # all ports: UCX chooses
        ranks, dns = policy["egress"]
        self.assertEqual(ranks, {"to": own})
        self.assertEqual({p["port"] for p in dns["ports"]}, {53})
        # The base's policy holds for them, too, and lets clients to the head's ports only.
        self.assertLessEqual(self.by_name("NetworkPolicy", "heddle")["podSelector"]["matchLabels"].items(),
                             labels.items())

    def test_ranks_are_on_machines_of_their_own(self):
        for pod in self.pods.values():
            (rule,) = pod["spec"]["affinity"]["podAntiAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"]
            self.assertEqual(rule["topologyKey"], "kubernetes.io/hostname")
            self.assertEqual(rule["labelSelector"]["matchLabels"], pod["metadata"]["labels"])


class FilesTest(unittest.TestCase):
    def test_every_file_parses(self):
        paths = [p for p in DEPLOY.rglob("*") if p.suffix in (".yaml", ".yml")]
        self.assertGreater(len(paths), 20)
        for path in paths:
            self.assertIsNotNone(load_yaml(path), path)

    def test_every_file_is_used(self):
        for folder in [ROOT / "base", *(ROOT / "overlays").iterdir(), *(ROOT / "components").iterdir()]:
            listed = read(folder / "kustomization.yaml")
            for path in folder.iterdir():
                if path.name != "kustomization.yaml":
                    self.assertIn(path.name, listed, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
