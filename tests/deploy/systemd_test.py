"""deploy/systemd/: the unit, its drop-in and the configuration that it starts with."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from deployment import DEPLOY, drain_seconds, heddle_takes, load_yaml, options, read, seconds, table_rows, yaml

FOLDER = DEPLOY / "systemd"
# Commented keys of heddle.yaml that show an example and not the default.
EXAMPLES = {"served-model-name", "grpc-port", "tls-cert", "tls-key", "api-key-file",
            "host-kv-memory", "disk-kv", "otlp-endpoint", "threads"}


def settings(path):
    """Name: values, of all lines that are no comment."""
    found = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", read(path), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


class UnitTest(unittest.TestCase):
    def setUp(self):
        self.unit = settings(FOLDER / "heddle.service")

    def test_stopping_may_take_longer_than_draining(self):
        config = load_yaml(FOLDER / "heddle.yaml")
        self.assertGreater(seconds(self.unit["TimeoutStopSec"][0]), drain_seconds(config) + 10)

    def test_code_may_be_made_at_run_time(self):
        # PCRE2 compiles regular expressions: with this setting no tokenizer could.
        self.assertNotIn("MemoryDenyWriteExecute", self.unit)

    def test_what_it_may_take_is_bounded(self):
        for name in ("MemoryMax", "TasksMax", "LimitNOFILE"):
            self.assertNotIn(self.unit[name], (["infinity"], ["100%"]))
        self.assertGreater(int(self.unit["TasksMax"][0]), 512)  # a thread for each core of large machines

    def test_it_has_no_rights_beyond_its_own(self):
        for name in ("PrivateUsers", "NoNewPrivileges", "DynamicUser"):
            self.assertEqual(self.unit[name], ["yes"])
        self.assertEqual(self.unit["CapabilityBoundingSet"], [""])

    def test_addresses_are_those_that_the_configuration_listens_on(self):
        self.assertEqual(self.unit["IPAddressDeny"], ["any"])
        self.assertEqual(self.unit["IPAddressAllow"], ["localhost"])
        self.assertEqual(load_yaml(FOLDER / "heddle.yaml")["host"], "127.0.0.1")

    def test_free_memory_can_be_read(self):
        self.assertNotEqual(self.unit.get("ProcSubset"), ["pid"])

    def test_systemd_takes_the_unit_with_and_without_the_drop_in(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("needs systemd-analyze")
        with tempfile.TemporaryDirectory() as folder:
            # It looks whether the program is there.
            text = read(FOLDER / "heddle.service").replace("/usr/local/bin/heddle", shutil.which("true"))
            unit = pathlib.Path(folder, "heddle.service")
            unit.write_text(text, encoding="utf-8")
            for drop_in in (False, True):
                if drop_in:
                    pathlib.Path(folder, "heddle.service.d").mkdir()
                    shutil.copy(FOLDER / "gpu.conf", pathlib.Path(folder, "heddle.service.d"))
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)],
                                      capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))


class ConfigurationTest(unittest.TestCase):
    def setUp(self):
        text = read(FOLDER / "heddle.yaml")
        self.commented = yaml.safe_load("".join(
            line + "\n" for line in re.findall(r"^#([a-z-]+: .*)$", text, re.MULTILINE)))
        self.everything = re.sub(r"^#([a-z-]+: )", r"\1", text, flags=re.MULTILINE)

    def test_every_key_is_an_option_of_serve(self):
        known = options()
        self.assertGreater(len(self.commented), 10)
        for key in [*load_yaml(FOLDER / "heddle.yaml"), *self.commented]:
            self.assertIn("serve", known.get(key, []), key)

    def test_what_is_commented_out_is_the_default(self):
        defaults = {row[0].split()[0].strip("`-"): row[2] for row in table_rows("configuration.md")
                    if row[0].startswith("`--")}
        for key, value in self.commented.items():
            if key not in EXAMPLES:
                self.assertEqual(str(value), defaults[key].split(",")[0], key)
        self.assertLessEqual(EXAMPLES, set(self.commented))

    def test_heddle_takes_it_as_it_is_and_with_every_comment_taken_away(self):
        heddle_takes(self, FOLDER / "heddle.yaml")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "heddle.yaml")
            # Files that are looked for before the model is.
            lines = [line for line in self.everything.splitlines()
                     if not line.startswith(("tls-", "api-key-file"))]
            path.write_text("\n".join(lines), encoding="utf-8")
            heddle_takes(self, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
