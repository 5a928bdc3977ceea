"""The sources of the web page, without a browser: what the modules name exists, every control has a name, text has
contrast; and with Node, where it is installed, web_modules_test.mjs tries the modules that need no document.

    web_modules_test.py FOLDER     FOLDER is server/web
"""

import html.parser
import os
import re
import shutil
import subprocess
import sys
import unittest

FOLDER = None
HERE = os.path.dirname(os.path.abspath(__file__))


def read(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as source:
        return source.read()


def scripts():
    """Names in the order in which they run, from CMakeLists.txt."""
    return re.search(r"set\(web_page_scripts\s+([^)]*)\)", read("CMakeLists.txt")).group(1).split()


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.controls, self.attributes, self.labelled_for, self.labels = [], [], [], set(), 0
        self.open_button = None
        self.feed(read("index.html"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.attributes += attrs
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "label":
            self.labels += 1
            self.labelled_for.add(given.get("for"))
        if tag in ("input", "textarea", "select", "button"):
            control = {"tag": tag, "name": given.get("aria-label", ""), "in_label": self.labels > 0, **given}
            self.controls.append(control)
            self.open_button = control if tag == "button" else None

    def handle_endtag(self, tag):
        if tag == "label":
            self.labels -= 1
        if tag == "button":
            self.open_button = None

    def handle_data(self, data):
        if self.open_button is not None:
            self.open_button["name"] += data.strip()


class Sources(unittest.TestCase):
    def test_what_a_module_imports_is_exported_by_one_before_it(self):
        exported = {}
        for script in scripts():
            source = read(script)
            for names, other in re.findall(r"^import \{([^}]*)\} from './(\w+)\.js';", source, re.M):
                self.assertIn(other, exported, f"{script} imports {other}, which comes later")
                for name in filter(None, re.split(r"[\s,]+", names)):
                    self.assertIn(name, exported[other], f"{script} imports {name} from {other}")
            pattern = r"^export (?:async )?(?:function\*?|const|class) (\w+)"
            exported[script[:-3]] = re.findall(pattern, source, re.M)
            # Statements that embed.cmake cannot put into one document.
            self.assertEqual(len(re.findall(r"^export ", source, re.M)), len(exported[script[:-3]]), script)
            self.assertEqual(re.findall(r"^export let|^import .* as (?!\w+ from)|^import \w", source, re.M), [], script)
        self.assertEqual(sorted(f for f in os.listdir(FOLDER) if f.endswith(".js")), sorted(scripts()))

    def test_elements_that_the_modules_ask_for_exist_once(self):
        ids = Page().ids
        self.assertEqual(len(ids), len(set(ids)))
        for script in scripts():
            for name in re.findall(r"byId\('([\w-]+)'\)", read(script)):
                self.assertIn(name, ids, script)

    def test_every_control_has_a_name(self):
        page = Page()
        for control in page.controls:
            if "hidden" in control or control.get("aria-hidden") == "true":
                continue
            named = control["name"] or control["in_label"] or control.get("id") in page.labelled_for
            self.assertTrue(named, control)

    def test_the_page_names_no_other_host_and_has_no_code_or_style_in_attributes(self):
        for name, value in Page().attributes:
            self.assertFalse(name.startswith("on") or name == "style", (name, value))
            self.assertNotRegex(value or "", r"^(https?:)?//")
        for script in scripts():
            source = read(script)
            self.assertNotRegex(source, r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
            self.assertNotIn(")heddle\"", source)  # it would end the raw string

    def test_figures_are_explained(self):
        words = re.findall(r"^  '([^']+)':", read("words.js"), re.M)
        shown = re.findall(r"figure\('([^']+)'", read("live.js")) + re.findall(r"^  \['([^']+)', row", read("live.js"), re.M)
        shown += re.findall(r"new Plot\('([^']+)'", read("live.js"))
        self.assertGreater(len(shown), 20)
        self.assertEqual([name for name in shown if name not in words], [])

    def test_text_has_contrast_in_both_themes(self):
        """WCAG 2.1, 1.4.3: 4.5 to 1, by its formula of relative luminance."""
        blocks = re.findall(r"(--back: [^}]*?)color-scheme|color-scheme: dark;\s*(--back: [^}]*)\}", read("base.css"))
        self.assertEqual(len(blocks), 2)
        for block in map("".join, blocks):
            colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
            pairs = [(ink, back) for ink in ("ink", "muted", "accent", "bad") for back in ("back", "raised")]
            pairs += [("ink", "user"), ("bad", "bad-back"), ("on-accent", "accent"), ("muted", "code"), ("one", "raised"), ("two", "raised")]
            pairs += [(ink, "code") for ink in ("ink", "word", "text", "number", "comment", "one", "bad")]
            for ink, back in pairs:
                self.assertGreaterEqual(contrast(colours[ink], colours[back]), 4.5, (ink, back))


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@unittest.skipUnless(shutil.which("node"), "no Node here (Debian: apt-get install nodejs)")
class Modules(unittest.TestCase):
    def test_in_node(self):
        ran = subprocess.run(["node", "--test", os.path.join(HERE, "web_modules_test.mjs")],
                             env={**os.environ, "HEDDLE_WEB_FOLDER": FOLDER}, capture_output=True, text=True, timeout=240)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


if __name__ == "__main__":
    FOLDER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
