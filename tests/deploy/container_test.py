"""deploy/Containerfile: the packages that heddle needs, and what a cluster expects of an image."""
import os
import re
import shutil
import subprocess
import unittest

from deployment import BINARY, DEPLOY, SOURCE, get_routes, read

BASE_IMAGE = {"libc6"}  # what every Debian has, and no list names


def stages(text):
    """Name of a stage: (what it is made from, its instructions, continued lines joined)."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found, name = {}, None
    for line in text.splitlines():
        if match := re.match(r"FROM (\S+) AS (\S+)", line):
            name = match.group(2)
            found[name] = (match.group(1), [])
        elif name and line.strip():
            found[name][1].append(" ".join(line.split()))
    return found


def debian_release():
    try:
        return re.search(r'VERSION_ID="?(\d+)', read("/etc/os-release")).group(1)
    except (OSError, AttributeError):
        return None


def packages_of(libraries):
    """The Debian packages of these files, and the files of none; a path may go through /lib -> /usr/lib."""
    paths = {}
    for library in libraries:
        real = os.path.realpath(library)
        paths.update({path: library for path in (library, real, real.removeprefix("/usr"))})
    done = subprocess.run(["dpkg", "-S", *paths], capture_output=True, text=True)
    found = {paths[path]: package for package, path in
             re.findall(r"^([^:,\s]+).*: (/\S+)$", done.stdout, re.MULTILINE) if path in paths}
    return set(found.values()), set(libraries) - set(found)


class ContainerfileTest(unittest.TestCase):
    def setUp(self):
        self.stages = stages(read(DEPLOY / "Containerfile"))
        install = next(i for i in self.stages["runtime"][1] if "apt-get install" in i)
        words = install.split("--no-install-recommends")[1].split("&&")[0].split()
        self.packages = set(words)
        self.assertEqual(words, sorted(words))

    def instructions(self, stage, keyword):
        """Of the stage and of those that it is made from, the first of these first."""
        base, own = self.stages[stage]
        earlier = self.instructions(base, keyword) if base in self.stages else []
        return earlier + [i[len(keyword) + 1:] for i in own if i.startswith(keyword + " ")]

    def test_the_packages_are_those_that_heddle_is_linked_with(self):
        if not BINARY.exists():
            self.skipTest(f"needs {BINARY}")
        if shutil.which("dpkg") is None or debian_release() != "12":
            self.skipTest("needs Debian 12, whose packages the image has")
        linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
        # What a sanitizer or a checking allocator brings is no part of a release.
        libraries = [line.split()[2] for line in linked.splitlines()
                     if "=>" in line and not re.search(r"lib(a|t|ub)san", line)]
        self.assertGreater(len(libraries), 20)
        needed, strangers = packages_of(libraries)
        self.assertEqual(strangers, set())
        self.assertEqual(self.packages, needed - BASE_IMAGE)

    def test_cpu_is_what_is_built_without_a_target(self):
        self.assertEqual(list(self.stages)[-1], "cpu")
        self.assertIn("cuda", self.stages)

    def test_both_images_run_as_a_user_without_rights(self):
        for target in ("cpu", "cuda"):
            user = self.instructions(target, "USER")[-1]
            self.assertRegex(user, r"^[1-9]\d+:[1-9]\d+$")  # a number: runAsNonRoot can check it

    def test_both_images_serve_and_are_asked_for_their_health(self):
        self.assertIn("/health", get_routes())
        for target in ("cpu", "cuda"):
            self.assertEqual(self.instructions(target, "ENTRYPOINT"), ['["heddle", "serve"]'])
            self.assertEqual(self.instructions(target, "EXPOSE"), ["8000 9000"])
            self.assertTrue(self.instructions(target, "HEALTHCHECK")[0].endswith('CMD ["heddle", "health"]'))

    def test_what_is_copied_is_there(self):
        for name, (_, instructions) in self.stages.items():
            for copy in (i.split()[1:] for i in instructions if i.startswith("COPY ")):
                if copy[0].startswith("--from="):
                    self.assertIn(copy[0].removeprefix("--from="), self.stages)
                    continue
                for path in copy[:-1]:
                    self.assertTrue((SOURCE / path).exists(), f"{name}: {path}")

    def test_the_context_has_what_is_built_and_not_what_was(self):
        ignored = [line for line in read(SOURCE / ".dockerignore").splitlines()
                   if line and not line.startswith("#")]
        for pattern in ("build", "build-*", ".git"):
            self.assertIn(pattern, ignored)
        # Everything below tests/ is left out but the model that the image brings along.
        self.assertLess(ignored.index("tests/*"), ignored.index("!tests/demo_model"))
        self.assertLess(ignored.index("tests/demo_model/*"), ignored.index("!tests/demo_model/model"))
        # Folders of the build (CMakeLists.txt) are not.
        top = re.findall(r"^add_subdirectory\((\w+)\)", read(SOURCE / "CMakeLists.txt"), re.MULTILINE)
        self.assertEqual({"base", "server"} & set(top), {"base", "server"})
        self.assertFalse(set(top) & set(ignored))

    def test_a_release_build_is_for_every_machine(self):
        for path in [SOURCE / "CMakeLists.txt", SOURCE / "CMakePresets.json",
                     *SOURCE.glob("cmake/*.cmake"), *SOURCE.glob("*/CMakeLists.txt"),
                     *SOURCE.glob("*/*/CMakeLists.txt")]:
            self.assertNotRegex(read(path), r"-m(arch|tune|cpu)=native", path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
