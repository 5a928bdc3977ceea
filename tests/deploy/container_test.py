"""deploy/Containerfile: the package that it makes and installs, and what a cluster expects of an image."""
import re
import unittest

from deployment import DEPLOY, SOURCE, get_routes, read


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


class ContainerfileTest(unittest.TestCase):
    def setUp(self):
        self.stages = stages(read(DEPLOY / "Containerfile"))

    def instructions(self, stage, keyword):
        """Of the stage and of those that it is made from, the first of these first."""
        base, own = self.stages[stage]
        earlier = self.instructions(base, keyword) if base in self.stages else []
        return earlier + [i[len(keyword) + 1:] for i in own if i.startswith(keyword + " ")]

    def test_each_image_has_the_package_that_its_own_stage_has_made(self):
        for target in ("cpu", "cuda"):
            build = self.stages[f"build-{target}"][1]
            self.assertTrue(any("cpack " in i and i.endswith(" -B /out") for i in build), target)
            install = next(i for i in self.stages[target][1] if "apt-get install" in i)
            self.assertIn(f"--mount=type=bind,from=build-{target},source=/out,target=/out ", install)
            self.assertIn(" /out/*.deb ", install)

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
        for pattern in ("build", "build-*", ".git", "tests"):
            self.assertIn(pattern, ignored)
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
