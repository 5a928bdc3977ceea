"""cmake/gpu_architectures.cmake with programs in nvidia-smi's place."""
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
MODULE = os.path.join(HERE, "..", "..", "cmake", "gpu_architectures.cmake")
CMAKE = sys.argv.pop() if len(sys.argv) > 1 else "cmake"


def architectures(nvidia_smi):
    """What the function makes of that shell script; None: there is no nvidia-smi."""
    with tempfile.TemporaryDirectory() as folder:
        if nvidia_smi is not None:
            path = os.path.join(folder, "nvidia-smi")
            with open(path, "w", encoding="utf-8") as out:
                out.write("#!/bin/sh\n" + nvidia_smi + "\n")
            os.chmod(path, 0o755)
        script = os.path.join(folder, "script.cmake")
        with open(script, "w", encoding="utf-8") as out:
            out.write(f'include("{MODULE}")\n'
                      "set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH FALSE)\n"
                      "set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH FALSE)\n"
                      f'set(CMAKE_PROGRAM_PATH "{folder}")\n'
                      "heddle_gpu_architectures(found)\n"
                      'message("${found}")\n')
        done = subprocess.run([CMAKE, "-P", script], capture_output=True, text=True, check=True)
        return done.stderr.strip()


class ArchitecturesTest(unittest.TestCase):
    def test_each_kind_of_gpu_is_named_once(self):
        self.assertEqual(architectures("echo 9.0"), "90a")
        self.assertEqual(architectures("printf '8.9\\n8.9\\n'"), "89")
        self.assertEqual(architectures("printf '8.0\\n9.0\\n12.0\\n'"), "80;90a;120")

    def test_gpus_that_are_too_old_are_left_out(self):
        self.assertEqual(architectures("printf '7.5\\n8.6\\n'"), "86")
        self.assertEqual(architectures("echo 7.0"), "90a")

    def test_without_an_answer_it_is_the_usual_one(self):
        self.assertEqual(architectures(None), "90a")
        self.assertEqual(architectures("echo 8.0; exit 9"), "90a")
        self.assertEqual(architectures("echo No devices were found"), "90a")
        self.assertEqual(architectures("echo '[N/A]'"), "90a")


if __name__ == "__main__":
    unittest.main()
