"""deploy/serve.sh as a new user meets it, in a folder where nothing is built: what it says, and when. Programs
that install and compile are stand-ins that write down how they were called."""
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance"))

from ports import reserve_port  # noqa: E402

SOURCE = pathlib.Path(os.environ.get("HEDDLE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
NEEDED = ["bash", "cut", "dirname", "env", "grep", "id", "printenv", "sed"]


class ServeScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "deploy").mkdir()
        for name in ("serve.sh", "install_packages.sh", "packages.txt"):
            shutil.copy(SOURCE / "deploy" / name, self.root / "deploy")
        (self.root / "bin").mkdir()
        for name in NEEDED:
            (self.root / "bin" / name).symlink_to(shutil.which(name))
        self.calls = self.root / "calls"
        # Everything is installed; cmake writes the build's files, ninja a program that tells its arguments.
        self.stand_in("dpkg-query", "echo 'install ok installed'")
        self.stand_in("cmake", f"/bin/mkdir -p {self.root}/build; : > {self.root}/build/build.ninja")
        self.stand_in("ninja", f"""[[ " $* " == *" -n "* ]] && exit 0
printf '#!%s\\necho "heddle $*"\\n' {shutil.which("bash")} > {self.root}/build/heddle
/bin/chmod +x {self.root}/build/heddle""")

    def stand_in(self, name, script):
        path = self.root / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\necho \"{name} $*\" >> {self.calls}\n{script}\n")
        path.chmod(0o755)

    def serve(self, *arguments, **environment):
        return subprocess.run([self.root / "deploy" / "serve.sh", *arguments], capture_output=True, text=True,
                              cwd=self.root, timeout=60, env={"PATH": str(self.root / "bin"), **environment})

    def assert_refused(self, done, *words):
        """It ended with one line that has the words, before anything was installed or built."""
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in ("heddle: ", *words):
            self.assertIn(word, done.stderr)
        self.assertFalse(self.calls.exists())

    def test_it_builds_and_serves_the_demo_model(self):
        done = self.serve("--port", str(reserve_port()))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^heddle serve demo --port \d+\n$")
        self.assertIn("heddle: building", done.stderr)

    def test_a_model_or_a_configuration_takes_its_place(self):
        (self.root / "m.gguf").touch()
        (self.root / "h.yaml").touch()
        port = str(reserve_port())
        self.assertEqual(self.serve("m.gguf", HEDDLE_PORT=port).stdout, "heddle serve m.gguf\n")
        self.assertEqual(self.serve("--config", "h.yaml").stdout, "heddle serve --config h.yaml\n")
        self.assertEqual(self.serve(HEDDLE_MODEL="m.gguf", HEDDLE_PORT=port).stdout, "heddle serve\n")

    def test_a_model_that_is_not_there_is_said_before_building(self):
        self.assert_refused(self.serve("/models/none"), "/models/none", "folder", ".gguf")
        self.assert_refused(self.serve(HEDDLE_MODEL="/models/none"), "/models/none")
        self.assert_refused(self.serve("--config=no.yaml"), "no.yaml")

    def test_a_port_that_is_taken_is_said_before_building(self):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = str(other.getsockname()[1])
            for done in (self.serve("--port", port), self.serve(f"--port={port}"), self.serve(HEDDLE_PORT=port)):
                self.assert_refused(done, f"port {port} ", "taken", "--port ")

    def test_help_needs_no_build(self):
        done = self.serve("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("./deploy/serve.sh MODEL --port 9000", done.stdout)
        self.assertFalse(self.calls.exists())

    def test_without_root_and_sudo_it_says_what_an_administrator_has_to_do(self):
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("apt-get", "")
        self.stand_in("id", "echo 1000")
        done = self.serve("--port", str(reserve_port()))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"needs root or sudo.*\n  apt-get install .*\bcmake\b.*\blibgrpc\+\+-dev\b")
        self.assertNotIn("apt-get ", self.calls.read_text())

    def test_without_a_network_it_says_so(self):
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("id", "echo 0")
        self.stand_in("apt-get", "echo 'E: no route to host' >&2; exit 100")
        done = self.serve("--port", str(reserve_port()))
        self.assertEqual(done.returncode, 1)
        self.assertIn("no route to host", done.stderr)
        self.assertIn("network", done.stderr)

    def test_a_package_source_out_of_reach_does_no_harm(self):
        self.stand_in("dpkg-query", "exit 1")
        self.stand_in("id", "echo 0")
        self.stand_in("apt-get", "[ $1 = update ] && exit 100; exit 0")
        self.assertEqual(self.serve("--port", str(reserve_port())).returncode, 0)

    def test_elsewhere_than_on_debian_it_names_the_packages(self):
        self.stand_in("dpkg-query", "exit 1")
        done = self.serve("--port", str(reserve_port()))
        self.assertEqual(done.returncode, 1)
        self.assertIn("no Debian", done.stderr)
        self.assertIn("libgrpc++-dev", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
