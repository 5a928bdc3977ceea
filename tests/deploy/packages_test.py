"""The .deb that cpack makes of this build: what is in it, its size, what lintian says; and whether man and the
shells read what the program wrote for them."""
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("HEDDLE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("HEDDLE_BINARY_DIR", SOURCE / "build"))
MAX_BYTES = 20e6  # without CUDA
COMMANDS = ["bench", "generate", "health", "inspect", "plan", "render", "serve", "simulate", "tokenize", "trace",
            "tune"]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def make_package(folder):
    """The path of a .deb of this build."""
    done = run("cpack", "--config", BUILD / "CPackConfig.cmake", "-G", "DEB", "-B", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(pathlib.Path(folder).glob("*.deb"))


def setUpModule():
    global FOLDER, PACKAGE, ROOT, CONTROL
    FOLDER = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(FOLDER.cleanup)
    PACKAGE = make_package(FOLDER.name)
    ROOT, CONTROL = pathlib.Path(FOLDER.name, "root"), pathlib.Path(FOLDER.name, "control")
    for option, target in (("-x", ROOT), ("-e", CONTROL)):
        done = run("dpkg-deb", option, PACKAGE, target)
        assert done.returncode == 0, done.stderr


def control():
    """Name: value of the package's description; of a long one the first line."""
    return dict(re.findall(r"^(\S+): (.*)$", (CONTROL / "control").read_text(), re.MULTILINE))


class PackageTest(unittest.TestCase):
    def test_its_name_and_size(self):
        version = re.search(r"project\(heddle VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
        self.assertRegex(PACKAGE.name, rf"^heddle(-cuda)?_{re.escape(version)}_\w+\.deb$")
        if "cuda" not in PACKAGE.name:
            self.assertLess(PACKAGE.stat().st_size, MAX_BYTES)

    def test_it_depends_on_every_library_that_the_program_is_linked_with(self):
        needed = re.findall(r"NEEDED +(\S+)", run("objdump", "-p", ROOT / "usr/bin/heddle").stdout)
        self.assertGreater(len(needed), 10)
        depends = set(re.findall(r"([a-z0-9.+-]+)(?: \([^)]*\))?(?:, |$)", control()["Depends"]))
        for library in needed:
            owners = re.findall(r"^([a-z0-9.+-]+):", run("dpkg", "-S", f"*/{library}").stdout, re.MULTILINE)
            names = run("dpkg-query", "-W", "-f", "${Package}, ${Provides}, ", *owners).stdout
            # By its own name, or by one that says more: libspdlog1.10-fmt9.
            self.assertTrue(depends & set(re.findall(r"[a-z0-9.+-]+", names)), library)

    def test_the_program_is_stripped_and_runs(self):
        program = ROOT / "usr/bin/heddle"
        self.assertEqual(program.stat().st_mode & 0o777, 0o755)
        self.assertIn("no symbols", run("nm", program).stderr)
        self.assertRegex(run(program, "--version").stdout, r"^heddle \d")

    def test_the_demo_model_is_where_the_program_looks(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(ROOT / "usr/bin/heddle", "inspect", "demo", cwd=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2.17 million", done.stdout)

    def test_the_demo_models_adapters_come_along(self):
        source, installed = (root / "demo-model" for root in (SOURCE / "share", ROOT / "usr/share/heddle"))
        for name in ("pirate", "upper"):
            for file in ("adapter_config.json", "adapter_model.safetensors"):
                path = pathlib.Path("adapters", name, file)
                self.assertEqual((installed / path).read_bytes(), (source / path).read_bytes(), path)

    def test_service_and_configuration(self):
        unit = (ROOT / "lib/systemd/system/heddle.service").read_text()
        self.assertTrue(unit.startswith("[Unit]\n"), unit[:80])
        self.assertIn("ExecStart=/usr/bin/heddle serve --config /etc/heddle/heddle.yaml\n", unit)
        self.assertNotIn("/usr/local", unit)
        self.assertEqual((CONTROL / "conffiles").read_text(), "/etc/heddle/heddle.yaml\n")
        # As it comes, it serves the model that comes along.
        configured = ROOT / "etc/heddle/heddle.yaml"
        self.assertRegex(configured.read_text(), r"(?m)^model: demo$")

    def test_what_debian_asks_of_every_package(self):
        doc = ROOT / "usr/share/doc" / control()["Package"]
        copyright_text = (doc / "copyright").read_text()
        for library in ("CLI11", "json"):  # compiled in
            self.assertIn(library, copyright_text)
        changes = gzip.open(doc / "changelog.gz", "rt").read()
        self.assertRegex(changes, rf"^{control()['Package']} \({re.escape(control()['Version'])}\) ")

    def test_everybody_may_read_everything_and_nobody_but_root_write(self):
        for path in ROOT.rglob("*"):
            mode = path.stat().st_mode & 0o777
            executable = path.is_dir() or path.name == "heddle" and path.parent.name == "bin"
            self.assertEqual(oct(mode), oct(0o755 if executable else 0o644), path)

    def test_nothing_in_it_names_the_folders_of_its_build(self):
        for path in (ROOT / "usr/bin/heddle", ROOT / "lib/systemd/system/heddle.service"):
            self.assertNotIn(str(SOURCE).encode(), path.read_bytes())

    def test_lintian_has_nothing_to_say(self):
        if shutil.which("lintian") is None:
            self.skipTest("needs lintian")
        done = run("lintian", "--no-cfg", "--fail-on", "error,warning", "--allow-root", PACKAGE)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)


class InstallTest(unittest.TestCase):
    """`cmake --install`: the same files, for whoever has no use for a package."""

    def install(self, prefix, root=""):
        done = run("cmake", "--install", BUILD, "--prefix", prefix, env={**os.environ, "DESTDIR": str(root)})
        self.assertEqual(done.returncode, 0, done.stderr)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def test_usr_local_gets_the_service_and_keeps_a_configuration(self):
        self.install("/usr/local", self.root)
        unit = self.root / "usr/local/lib/systemd/system/heddle.service"
        self.assertIn("ExecStart=/usr/local/bin/heddle ", unit.read_text())
        configured = self.root / "etc/heddle/heddle.yaml"
        self.assertEqual(configured.read_text(), (ROOT / "etc/heddle/heddle.yaml").read_text())
        configured.write_text("model: mine\n")
        self.install("/usr/local", self.root)
        self.assertEqual(configured.read_text(), "model: mine\n")

    def test_a_prefix_of_ones_own_gets_everything_below_it(self):
        prefix = self.root / "opt"
        self.install(prefix)
        self.assertEqual(sorted(path.name for path in self.root.iterdir()), ["opt"])
        self.assertEqual(sorted(path.name for path in prefix.iterdir()), ["bin", "share"])
        examples = sorted(path.name for path in (prefix / "share/doc/heddle/examples").iterdir())
        self.assertEqual(examples, ["gpu.conf", "heddle.service", "heddle.yaml"])
        done = run(prefix / "bin/heddle", "inspect", "demo", cwd=self.root)
        self.assertEqual(done.returncode, 0, done.stderr)


class PageTest(unittest.TestCase):
    def setUp(self):
        self.folder = ROOT / "usr/share/man/man1"

    def test_there_is_a_page_for_the_program_and_for_each_command(self):
        listed = re.findall(r"^  ([a-z]+) +[A-Z][a-z]", run(ROOT / "usr/bin/heddle", "--help").stdout, re.MULTILINE)
        self.assertEqual(sorted(listed), COMMANDS)
        pages = sorted(path.name for path in self.folder.iterdir())
        self.assertEqual(pages, sorted(["heddle.1.gz", *(f"heddle-{name}.1.gz" for name in COMMANDS)]))

    def test_a_page_has_every_option_of_its_command(self):
        for name in COMMANDS:
            help_text = run(ROOT / "usr/bin/heddle", name, "--help").stdout
            page = gzip.open(self.folder / f"heddle-{name}.1.gz", "rt").read().replace("\\-", "-")
            for option in re.findall(r"^  (--[a-z0-9-]+)", help_text, re.MULTILINE):
                self.assertIn(f"\\fB{option}\\fR", page, name)

    def test_groff_reads_them_without_a_warning(self):
        if shutil.which("groff") is None:
            self.skipTest("needs groff")
        for page in self.folder.iterdir():
            with gzip.open(page) as text:
                done = subprocess.run(["groff", "-ww", "-man", "-Tutf8"], input=text.read(), capture_output=True,
                                      timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, b""), page)


class CompletionTest(unittest.TestCase):
    """What shells propose; each word's end is where the cursor is."""

    CASES = [
        ("heddle se", {"serve"}),
        ("heddle help tra", {"trace"}),
        ("heddle serve --drain-", {"--drain-delay", "--drain-timeout"}),
        ("heddle serve --policy f", {"fcfs", "fair"}),
        ("heddle render --temp", {"--template"}),
        ("heddle serve d", {"demo", "dusk/"}),
        ("heddle serve --config d", {"dawn.yaml", "dusk/"}),
        ("heddle serve --port ", set()),
        ("heddle --completion z", {"zsh"}),
    ]

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        (self.work / "dawn.yaml").touch()
        (self.work / "dusk").mkdir()

    def script(self, path):
        return str(ROOT / "usr/share" / path)

    def test_bash(self):
        words = 'COMP_WORDS=($1); [[ $1 == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))'
        for line, proposed in self.CASES:
            done = run("bash", "-c", f'source "$0"; {words}; _heddle; printf "%s\\n" "${{COMPREPLY[@]}}"',
                       self.script("bash-completion/completions/heddle"), line, cwd=self.work)
            # bash itself puts the slash behind folders.
            self.assertEqual({word.rstrip("/") for word in done.stdout.split()},
                             {word.rstrip("/") for word in proposed}, line + done.stderr)

    def test_bash_takes_a_value_behind_an_equals_sign(self):
        done = run("bash", "-c", 'source "$0"; COMP_WORDS=(heddle serve --policy = d); COMP_CWORD=4; _heddle; '
                   'echo "${COMPREPLY[@]}"', self.script("bash-completion/completions/heddle"))
        self.assertEqual(done.stdout, "deadline\n")

    def test_fish(self):
        if shutil.which("fish") is None:
            self.skipTest("needs fish")
        for line, proposed in self.CASES:
            if line == "heddle serve d":  # all files, where bash leaves out those that are no model
                proposed = proposed | {"dawn.yaml"}
            done = run("fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]',
                       self.script("fish/vendor_completions.d/heddle.fish"), line, cwd=self.work,
                       env={**os.environ, "HOME": str(self.work)})
            self.assertEqual({row.split("\t")[0] for row in done.stdout.splitlines()}, proposed, line + done.stderr)

    def test_zsh_reads_it(self):
        if shutil.which("zsh") is None:
            self.skipTest("needs zsh")
        done = run("zsh", "-f", "-c", 'autoload -U compinit; compinit -u -D; source $1; print -r -- $_comps[heddle]',
                   "zsh", self.script("zsh/vendor-completions/_heddle"), env={**os.environ, "HOME": str(self.work)})
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "_heddle\n", ""))


if __name__ == "__main__":
    for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "objdump"):
        if shutil.which(tool) is None:
            print(f"SKIPPED: needs {tool}")
            sys.exit(77)
    if not (BUILD / "heddle").exists():
        print(f"SKIPPED: needs {BUILD / 'heddle'}")
        sys.exit(77)
    unittest.main(verbosity=2)
