"""The .deb in a bare Debian 12: installed, asked, upgraded, removed and purged there.

Runs with HEDDLE_DEBIAN_ROOT_TESTS=1 and needs root, a network and debootstrap, or, with HEDDLE_DEBIAN_ROOT=FOLDER,
such a root that is there already (it is copied). HEDDLE_DEBIAN_PACKAGE names a .deb other than this build's."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from ports import reserve_port  # noqa: E402

MIRROR = os.environ.get("HEDDLE_DEBIAN_MIRROR", "http://deb.debian.org/debian")


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900, **options)


def must(*command, **options):
    done = run(*command, **options)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def bare_root(folder):
    """A Debian 12 with what every Debian has and nothing else."""
    root = pathlib.Path(folder, "root")
    if os.environ.get("HEDDLE_DEBIAN_ROOT"):
        must("cp", "-a", os.environ["HEDDLE_DEBIAN_ROOT"], root)
    else:
        must("debootstrap", "--variant=minbase", "bookworm", root, MIRROR)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    proxy = must("apt-config", "dump", "Acquire::http::Proxy")
    (root / "etc/apt/apt.conf.d/99proxy").write_text(proxy)
    return root


def enter(command):
    """Runs a shell command in the root, with processes of its own, and the host's loopback."""
    script = 'mount -t proc proc "$0/proc" && exec chroot "$0" /bin/sh -c "$1"'
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", script, str(ROOT), command]


def inside(command):
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
    return run(*enter(command), env=environment)


def setUpModule():
    global ROOT, PACKAGE, NEXT
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    ROOT = bare_root(folder.name)
    made = os.environ.get("HEDDLE_DEBIAN_PACKAGE")
    if not made:
        import packages_test
        made = packages_test.make_package(folder.name)
    PACKAGE = shutil.copy(made, ROOT / "root")
    # The version after it, with a configuration that says something else.
    tree = pathlib.Path(folder.name, "next")
    must("dpkg-deb", "-R", PACKAGE, tree)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*$", "Version: 99.0", control.read_text()))
    with open(tree / "etc/heddle/heddle.yaml", "a", encoding="utf-8") as out:
        out.write("# of version 99\n")
    NEXT = ROOT / "root/next.deb"
    must("dpkg-deb", "-b", tree, NEXT)
    assert inside("apt-get update -q").returncode == 0


class BareDebian(unittest.TestCase):
    """One life of the package, in the order of the tests' names."""

    def install(self, file):
        done = inside(f"apt-get install -q -y --no-install-recommends -o Dpkg::Options::=--force-confdef"
                      f" -o Dpkg::Options::=--force-confold /root/{pathlib.Path(file).name}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # Maintainer scripts have nothing to complain of.
        self.assertNotRegex(done.stdout + done.stderr, r"heddle.*(not found|error|failed|warning)")

    def answer(self, arguments):
        """What the server in the root says to a question."""
        port = reserve_port()
        server = subprocess.Popen(enter(f"heddle serve {arguments} --port {port} --threads 1"),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            lines = []
            for line in server.stdout:
                lines.append(line)
                if "-d '" in line:
                    break
            else:
                self.fail("".join(lines))
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            body = {"messages": [{"role": "user", "content": "What is 7 + 5?"}], "temperature": 0}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            connection.close()
            self.assertEqual(response.status, 200, text)
            return json.loads(text)["choices"][0]["message"]["content"]
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()
            server.stdout.close()

    def test_1_it_installs_and_answers(self):
        self.assertFalse((ROOT / "usr/bin/heddle").exists())
        began = time.monotonic()
        self.install(PACKAGE)
        print(f"installed with its libraries in {time.monotonic() - began:.0f} s", file=sys.stderr)
        self.assertIn("12", self.answer("demo"))

    def test_2_a_model_by_its_path_and_the_configuration_of_the_service_work(self):
        shutil.copytree(ROOT / "usr/share/heddle/demo-model", ROOT / "srv/mine")
        self.assertIn("12", self.answer("/srv/mine"))
        self.assertIn("12", self.answer("--config /etc/heddle/heddle.yaml"))

    def test_3_nothing_listens_by_itself_and_nobody_was_added(self):
        users = (ROOT / "etc/passwd").read_text()
        self.assertNotIn("heddle", users)
        wanted = list((ROOT / "etc/systemd").rglob("*heddle*"))
        self.assertEqual(wanted, [])

    def test_4_an_upgrade_keeps_what_the_administrator_wrote(self):
        configured = ROOT / "etc/heddle/heddle.yaml"
        configured.write_text(configured.read_text() + "max-queue: 77\n")
        # As `systemctl enable heddle` does it.
        link = ROOT / "etc/systemd/system/multi-user.target.wants/heddle.service"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("/lib/systemd/system/heddle.service")
        self.install(NEXT)
        self.assertIn("99.0", inside("dpkg-query -W heddle*").stdout)
        self.assertIn("max-queue: 77", configured.read_text())
        self.assertIn("12", self.answer("demo"))

    def test_5_removing_leaves_the_configuration_and_purging_nothing(self):
        name = must("dpkg-deb", "-f", PACKAGE, "Package").strip()
        files = [ROOT / path.lstrip("/") for path in inside(f"dpkg -L {name}").stdout.split()]
        files = [path for path in files if path.is_file()]
        self.assertGreater(len(files), 30)
        done = inside(f"apt-get remove -q -y {name}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([path for path in files if path.exists()], [ROOT / "etc/heddle/heddle.yaml"])
        self.assertEqual(inside(f"apt-get purge -q -y {name}").returncode, 0)
        left = [path for folder in ("etc", "usr", "lib", "var/cache")
                for path in (ROOT / folder).rglob("*heddle*") if "/apt/" not in str(path)]
        self.assertEqual(left, [])


if __name__ == "__main__":
    if not os.environ.get("HEDDLE_DEBIAN_ROOT_TESTS"):
        print("SKIPPED: installs Debian over the network; set HEDDLE_DEBIAN_ROOT_TESTS=1")
        sys.exit(77)
    if os.geteuid() != 0 or not (shutil.which("debootstrap") or os.environ.get("HEDDLE_DEBIAN_ROOT")):
        print("SKIPPED: needs root, and debootstrap or HEDDLE_DEBIAN_ROOT")
        sys.exit(77)
    unittest.main(verbosity=2)
