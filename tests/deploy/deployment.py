"""What the tests of deploy/ share: files, tables of the docs, expressions of Prometheus."""
import os
import pathlib
import re
import subprocess
import sys

try:
    import yaml
except ImportError:
    print("SKIPPED: needs PyYAML (tests/requirements.txt)")
    sys.exit(77)

SOURCE = pathlib.Path(os.environ.get("HEDDLE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BINARY = pathlib.Path(os.environ.get("HEDDLE_BINARY_DIR", SOURCE / "build")) / "heddle"
DEPLOY = SOURCE / "deploy"
RULES = DEPLOY / "prometheus" / "heddle.rules.yaml"


def read(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def load_yaml(path):
    return yaml.safe_load(read(path))


def table_rows(page):
    """The cells of every row of the tables in a page of docs/, without backquotes around them."""
    for line in read(SOURCE / "docs" / page).splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in re.split(r"(?<=\s)\|(?=\s|$)", line[1:].rstrip("| "))]


def documented_metrics():
    """Name of a series: its labels. Histograms are their three kinds of series."""
    metrics = {}
    for row in table_rows("metrics.md"):
        if len(row) < 4 or row[1] not in ("counter", "gauge", "histogram"):
            continue
        name, labels = row[0].strip("`"), set(re.findall(r"`(\w+)`", row[2]))
        if row[1] == "histogram":
            metrics[name + "_bucket"] = labels | {"le"}
            metrics[name + "_sum"] = metrics[name + "_count"] = labels
        else:
            metrics[name] = labels
    return metrics


# Names that Prometheus and kube-state-metrics know by themselves.
WELL_KNOWN = {
    "up": set(),
    "kube_deployment_spec_replicas": {"deployment"},
    "kube_deployment_status_replicas_available": {"deployment"},
    "kube_pod_container_status_restarts_total": {"container"},
}
TARGET_LABELS = {"job", "instance", "namespace", "pod"}  # of whatever is scraped

_TOKEN = re.compile(r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
                      |(?P<name>[a-zA-Z_:$][\w:$]*)
                      |(?P<number>\d[\w.]*)
                      |(?P<other>=~|!~|!=|==|<=|>=|\S)""", re.VERBOSE)
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}
_WORDS = {"and", "or", "unless", "bool", "offset"}


def selectors(expression):
    """(metrics with the labels that they are selected by, labels that results are grouped by)."""
    tokens = [(m.lastgroup, m.group()) for m in _TOKEN.finditer(expression)]
    used, grouped = [], set()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if text == "[":  # a range
            while tokens[at][1] != "]":
                at += 1
        elif kind == "name" and text in _GROUPING and following == "(":
            while tokens[at][1] != ")":
                at += 1
                if tokens[at][0] == "name":
                    grouped.add(tokens[at][1])
        elif kind == "name" and text not in _WORDS and following != "(" and following not in _GROUPING:
            labels = set()
            if following == "{":
                at += 1
                while tokens[at][1] != "}":
                    if tokens[at][0] == "name":
                        labels.add(tokens[at][1])
                    at += 1
            used.append((text, labels))
        at += 1
    return used, grouped


def faults(expression, known):
    """What is wrong with the names in an expression; `known` as documented_metrics() has them."""
    used, grouped = selectors(expression)
    if not used:
        return [f"no metric in {expression!r}"]
    found, allowed = [], set(TARGET_LABELS)
    for metric, labels in used:
        if metric not in known:
            found.append(f"unknown metric {metric} in {expression!r}")
            continue
        allowed |= known[metric]
        for label in labels - known[metric] - TARGET_LABELS:
            found.append(f"{metric} has no label {label} in {expression!r}")
    found += [f"no metric has the label {label} in {expression!r}" for label in grouped - allowed]
    return found


def options():
    """Name of each option that a YAML file may set: the commands that take it."""
    known = {}
    for row in table_rows("configuration.md"):
        if len(row) < 5 or not row[1]:
            continue
        if row[0] == "`MODEL`":
            known["model"] = row[3].split(", ")
        elif flag := re.match(r"`--([a-z0-9-]+)", row[0]):
            known[flag.group(1)] = row[3].split(", ")
    return known


def seconds(value):
    """30, "30", "500ms", "2m" or "1min 30s" in seconds."""
    units = {"ms": 1e-3, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600}
    return sum(float(number) * units[unit]
               for number, unit in re.findall(r"([\d.]+)\s*([a-z]*)", str(value)))


def drain_seconds(config):
    """From SIGTERM until the last answer is cut off, by a heddle.yaml."""
    return seconds(config.get("drain-delay", 0)) + seconds(config.get("drain-timeout", 30))


def heddle_takes(case, path, **environment):
    """Fails `case` unless `heddle serve --config path` accepts every key and value of the file."""
    if not BINARY.exists():
        case.skipTest(f"needs {BINARY}")
    # Exit code 2 is a wrong configuration; with 1 it got as far as the model, which there is not.
    names = {"HEDDLE_MODEL": "/no/such/model", "HEDDLE_HOST": "127.0.0.1", "HEDDLE_PORT": "0",
             "HEDDLE_GRPC_PORT": "0", **environment}
    done = subprocess.run([BINARY, "serve", "--config", path], capture_output=True, text=True,
                          timeout=60, env={**os.environ, **names})
    case.assertEqual(done.returncode, 1, done.stderr)
    case.assertIn("/no/such/model", done.stderr)


def served_ports(config):
    """Name of a port: its number, by a heddle.yaml."""
    ports = {"http": config.get("port", 8000)}
    if "grpc-port" in config:
        ports["grpc"] = config["grpc-port"]
    return ports


def get_routes():
    """Paths that the server answers without a key."""
    router = read(SOURCE / "server" / "http" / "router.cc")
    return set(re.findall(r'"GET", "([^"]+)", false', router))
