"""The web page in a real browser, against the server with the scripted engine.

    web_page_test.py --start PROGRAM [--screenshots FOLDER]

PROGRAM is tests/server/fake_server.cc: it answers a prompt that contains "(say)" with what follows it. Exits
with 77 (skipped) where there is no Chromium.
"""

import argparse
import os
import re
import subprocess
import sys
import unittest

import browser

PORT = None
TEXT_PORT = None  # of a model without a chat template
SCREENSHOTS = None
MARKDOWN = """# A title

Some **bold** and *slanted* text, `code`, and [a link](https://example.org/page).

- one
  - inner
- two

1. first
2. second

> said

| name | value |
|---|---|
| a | 1 |

```python
print("<b>not bold</b>")
```
"""
# Each would run or load something if it became markup.
ATTACKS = [
    "<img src=x onerror=window.broken=1>", "<script>window.broken=1</script>", "[x](javascript:window.broken=1)",
    "![x](https://example.org/x.png)", "<a href='javascript:window.broken=1'>x</a>", "[x](data:text/html,x)",
    "**<svg onload=window.broken=1>**", "`<iframe src=https://example.org>`",
]


class WebPageCase(unittest.TestCase):
    def setUp(self):
        self.page = browser.Browser(browser.find())
        self.addCleanup(self.page.__exit__)
        self.page.open(f"http://127.0.0.1:{self.port()}/")

    def port(self):
        return PORT

    def drawn(self):
        """What the page draws is put into the document with the frame that shows it: waits for two."""
        self.page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def picture(self, name):
        if SCREENSHOTS:
            self.page.screenshot(os.path.join(SCREENSHOTS, name + ".png"))

    def check_no_problem(self):
        self.assertEqual(self.page.problems, [])


class WebPage(WebPageCase):
    def ask(self, text):
        answers = self.page.run("document.querySelectorAll('.turn.assistant').length")
        self.page.run("document.getElementById('prompt').focus()")
        self.page.type(text)
        self.page.press("Enter", text="\r")
        self.page.wait(f"document.querySelectorAll('.turn.assistant .foot').length > {answers}")
        self.drawn()

    def answer(self, what="textContent"):
        return self.page.run(f"[...document.querySelectorAll('.turn.assistant .text:not(details .text)')].at(-1).{what}")

    def test_it_loads_without_an_error_and_talks_to_no_other_host(self):
        self.page.wait("document.getElementById('state').textContent === 'serving'")
        loaded = self.page.run("performance.getEntriesByType('resource').map(e => e.name)")
        self.assertTrue(all(url.startswith(f"http://127.0.0.1:{PORT}/") for url in loaded), loaded)
        self.check_no_problem()
        self.picture("empty")

    def test_a_message_is_answered_as_it_streams(self):
        self.ask("(say)Hello *there*")
        self.assertEqual(self.answer(), "Hello there")
        self.assertIn("tokens", self.page.run("document.querySelector('.turn.assistant .foot').textContent"))
        self.assertTrue(self.page.run("document.activeElement.id === 'prompt'"))
        self.check_no_problem()

    def test_markdown_becomes_elements(self):
        self.ask("(say)" + MARKDOWN)
        html = self.answer("innerHTML")
        for part in ("<h3>A title</h3>", "<strong>bold</strong>", "<em>slanted</em>", "<code>code</code>",
                     "<li>one<ul><li>inner</li></ul></li>", "<ol start=\"1\"><li>first</li><li>second</li></ol>",
                     "<blockquote><p>said</p></blockquote>", "<th>name</th>", "<td>1</td>",
                     "print(\"&lt;b&gt;not bold&lt;/b&gt;\")"):
            self.assertIn(part, html)
        self.assertIn('href="https://example.org/page"', html)
        self.check_no_problem()
        self.picture("markdown")

    def test_what_the_model_writes_never_becomes_markup(self):
        for text in ATTACKS:
            with self.subTest(text=text):
                self.ask("(say)" + text)
                self.assertIsNone(self.page.run("window.broken"))
                bad = ("[...document.querySelectorAll('.turn *')].filter(e => /^(IMG|SCRIPT|IFRAME|SVG)$/i.test(e.tagName)"
                       " || [...e.attributes].some(a => a.name.startsWith('on')) || /^(javascript|data):/i.test(e.href ?? '')).length")
                self.assertEqual(self.page.run(bad), 0)
        self.check_no_problem()

    def test_reasoning_is_folded(self):
        self.ask("(say)<think>Let me see.</think>Four.")
        folded = self.page.run("document.querySelector('.turn.assistant details')?.open")
        if folded is None:
            self.assertIn("Four.", self.answer())  # this server has no reasoning parser set
        else:
            self.assertFalse(folded)

    def test_an_error_is_shown_and_the_next_message_works(self):
        self.ask("(full)")
        self.assertIn("too many requests", self.page.run("document.querySelector('.error').textContent"))
        self.page.problems.clear()  # the browser itself notes the status 429
        self.ask("(say)fine")
        self.assertEqual(self.answer(), "fine")
        self.check_no_problem()

    def test_escape_stops_an_answer(self):
        self.page.run("document.getElementById('prompt').focus()")
        self.page.type("(waits)")
        self.page.press("Enter", text="\r")
        self.page.wait("!document.getElementById('halt').hidden")
        self.page.press("Escape")
        self.page.wait("!document.getElementById('send').hidden")
        self.assertIn("stopped", self.page.run("document.querySelector('.turn.assistant .foot').textContent"))

    def test_the_key_is_sent_and_kept_nowhere_else(self):
        self.page.run("document.getElementById('key').value = 'sk-secret'")
        self.ask("(say)x")
        kept = self.page.run("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
        self.assertNotIn("sk-secret", kept)

    def test_nothing_is_wider_than_a_phone(self):
        self.page.resize(360, 740, mobile=True)
        self.page.open(f"http://127.0.0.1:{PORT}/")
        self.ask("(say)" + MARKDOWN + "\n" + "x" * 300)
        self.page.run("document.getElementById('settings').open = true")
        self.assertLess(self.page.run("document.querySelector('header').offsetHeight"), 64)  # one row
        for view in ("chat", "live"):
            self.page.run(f"document.getElementById('tab-{view}').click()")
            self.page.wait(f"document.getElementById('{view}').offsetWidth > 0")
            self.assertLessEqual(self.page.run("document.documentElement.scrollWidth"), 360)
            self.picture("phone-" + view)

    def test_views_change_with_the_keyboard(self):
        self.page.resize(360, 740, mobile=True)
        self.page.run("document.getElementById('tab-chat').focus()")
        self.page.press("ArrowRight")
        self.assertEqual(self.page.run("document.activeElement.id"), "tab-live")
        self.assertTrue(self.page.run("document.getElementById('chat').offsetWidth === 0"))

    def test_dark_and_light(self):
        colour = "getComputedStyle(document.body).backgroundColor"
        self.page.prefer("dark")
        dark = self.page.run(colour)
        self.page.prefer("light")
        light = self.page.run(colour)
        self.assertNotEqual(dark, light)
        self.page.run("document.getElementById('theme').click()")
        self.assertEqual(self.page.run(colour), dark)
        self.assertEqual(self.page.run("getComputedStyle(document.documentElement).colorScheme"), "dark")
        self.picture("dark")

    def test_the_live_view_lists_requests_while_they_run(self):
        rows = "document.querySelectorAll('#requests tbody tr').length"
        self.page.wait("document.getElementById('requests-note').textContent.startsWith('No request')")
        self.page.run("document.getElementById('prompt').focus()")
        self.page.type("(waits)")
        self.page.press("Enter", text="\r")
        self.page.wait(rows + " === 1")
        cells = self.page.run("[...document.querySelectorAll('#requests tbody td')].map(cell => cell.textContent)")
        self.assertRegex(cells[0], "^req-[0-9a-f]{16}$")
        self.assertEqual(cells[1:4], ["waiting", "1.5 s", "–"])
        self.assertGreater(int(cells[4]), 0)
        self.picture("live-requests")
        self.page.press("Escape")
        self.page.wait(rows + " === 0")
        self.check_no_problem()

    def test_the_live_view_has_figures_and_plots(self):
        self.ask("(say)one two three")
        self.page.wait("document.querySelectorAll('#figures dd').length >= 8")
        self.page.wait("document.querySelectorAll('.plot polyline').length === 10")
        self.assertEqual(self.page.run("document.getElementById('live-note').textContent"), "")
        self.check_no_problem()


class TextPage(WebPageCase):
    """The page of a model that has no chat template."""

    def port(self):
        return TEXT_PORT

    def complete(self, act):
        self.page.run("window.before = document.querySelector('.turn .foot')")
        act()
        self.page.wait("document.querySelector('.turn .foot') && document.querySelector('.turn .foot') !== window.before")
        self.drawn()
        return self.page.run("document.querySelector('.turn .text').textContent")

    def write(self, text):
        self.page.run("document.getElementById('prompt').focus()")
        self.page.type(text)
        self.page.press("Enter", text="\r")

    def press_button(self, name):
        self.page.run(f"[...document.querySelectorAll('.turn .foot button')].find(b => b.textContent === '{name}').click()")

    def test_it_says_what_the_model_does_and_offers_no_chat(self):
        shown = self.page.run("document.getElementById('hello').innerText")
        self.assertIn("goes on with a text", shown)
        self.assertNotIn("Ask the model", shown)
        self.page.run("document.getElementById('settings').open = true")
        self.assertTrue(self.page.run("document.getElementById('system').offsetWidth === 0"))
        self.assertTrue(self.page.run("document.getElementById('thinking').offsetWidth === 0"))
        self.assertTrue(self.page.run("document.getElementById('temperature').offsetWidth > 0"))
        self.picture("text-empty")

    def test_a_text_goes_on_again_and_further(self):
        text = self.complete(lambda: self.write("I begin (say) and <b>go</b> on."))
        self.assertEqual(text, "I begin (say) and <b>go</b> on." + " and <b>go</b> on.")
        self.assertEqual(self.complete(lambda: self.press_button("Again")), text)
        longer = self.complete(lambda: self.press_button("Continue"))
        self.assertTrue(longer.startswith(text) and len(longer) > len(text), longer)
        self.picture("text")
        self.check_no_problem()

    def test_an_error_is_shown_and_taken_away_by_the_next_try(self):
        self.complete(lambda: self.write("(full)"))
        self.assertIn("too many requests", self.page.run("document.querySelector('.error').textContent"))
        self.complete(lambda: self.press_button("Again"))
        self.assertEqual(self.page.run("document.querySelectorAll('.error').length"), 1)


def start(program, *flags):
    """The process and its port."""
    process = subprocess.Popen([program, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process, int(re.search(r"\d+", process.stdout.readline()).group())


def main():
    global PORT, TEXT_PORT, SCREENSHOTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", required=True)
    parser.add_argument("--screenshots")
    options, rest = parser.parse_known_args()
    if not os.environ.get("HEDDLE_BROWSER_TESTS"):
        print("skipped: a browser's timing under load decides it; set HEDDLE_BROWSER_TESTS=1")
        sys.exit(77)
    if not browser.find():
        print("skipped: no Chromium here (Debian: apt-get install chromium)")
        sys.exit(77)
    SCREENSHOTS = options.screenshots
    server, PORT = start(options.start)
    texts, TEXT_PORT = start(options.start, "--no-chat")
    try:
        result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    finally:
        for process in (server, texts):
            process.terminate()
            process.wait()
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
