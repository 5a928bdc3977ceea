"""The web page in a real browser, against the server with the scripted engine.

    web_page_test.py --start PROGRAM [--heddle PROGRAM --adapters FOLDER] [--screenshots FOLDER]

The first PROGRAM is tests/server/fake_server.cc: it answers a prompt that contains "(say)" with what follows it. The second is
heddle itself, which serves its demo model. Exits with 77 (skipped) where there is no Chromium.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest

import browser

PORT = None
TEXT_PORT = None  # of a model without a chat template
SLOW_PORT = None  # of one that takes 30 ms for each character
DEMO_PORT = None  # of heddle with the demo model, its adapters and an API key
START = None  # the fake server's program
SCREENSHOTS = None
KEY = "sk-of-the-test"
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

    def write(self, text):
        self.page.run("document.getElementById('prompt').focus()")
        self.page.type(text)
        self.page.press("Enter", text="\r")

    def finished(self):
        """Until no answer is coming, and what came is drawn."""
        self.page.wait("!document.getElementById('send').hidden")
        self.drawn()

    def ask(self, text):
        self.write(text)
        self.finished()

    def press_button(self, name, turn="article:last-child"):
        self.page.run(f"[...document.querySelectorAll('{turn} button')].find(b => b.textContent === '{name}').click()")

    def press_id(self, name):
        self.page.run(f"document.getElementById('{name}').click()")

    def set(self, name, value):
        """As if somebody had typed it."""
        self.page.run(f"(() => {{ const field = document.getElementById('{name}'); field.value = {json.dumps(value)};"
                      " field.dispatchEvent(new Event('input', {bubbles: true})); field.dispatchEvent(new Event('change')); })()")

    def text(self, selector):
        return self.page.run(f"document.querySelector({json.dumps(selector)})?.textContent")

    def texts(self, selector):
        return self.page.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(node => node.textContent)")

    def open_again(self):
        self.page.open("about:blank")
        self.page.open(f"http://127.0.0.1:{self.port()}/")

    def titles(self):
        return self.texts("#conversations button:first-child")

    def toast(self):
        return self.text("#toast span")


class WebPage(WebPageCase):
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
                     "<blockquote><p>said</p></blockquote>", '<th scope="col">name</th>', "<td>1</td>",
                     'print(<span class="hl-string">"&lt;b&gt;not bold&lt;/b&gt;"</span>)'):
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
        self.write("(waits)")
        self.page.wait("!document.getElementById('halt').hidden")
        self.page.press("Escape")
        self.finished()
        self.assertIn("stopped", self.page.run("document.querySelector('.turn.assistant .foot').textContent"))

    def test_the_key_is_sent_and_kept_nowhere_else(self):
        self.set("key", "sk-secret")
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
        self.write("(waits)")
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


class Conversations(WebPageCase):
    """What stays, and what can be done with it."""

    def test_conversations_and_settings_stay(self):
        self.ask("(say)first")
        self.press_id("new")
        self.ask("(say)second")
        self.set("system", "Be brief.")
        self.set("temperature", "0.5")
        self.press_id("live-toggle")
        self.open_again()
        self.assertEqual(self.titles(), ["(say)second", "(say)first"])
        self.assertEqual(self.texts(".turn .text"), ["(say)second", "second"])
        self.assertEqual(self.page.run("document.getElementById('system').value"), "Be brief.")
        self.assertIn("temperature 0.5", self.text("#summary"))
        self.assertEqual(self.page.run("document.getElementById('live').offsetWidth"), 0)
        self.page.run("document.querySelectorAll('#conversations button:first-child')[1].click()")
        self.assertEqual(self.texts(".turn .text"), ["(say)first", "first"])
        self.assertEqual(self.page.run("document.getElementById('system').value"), "")  # each has its own
        self.check_no_problem()

    def test_a_title_is_changed_and_a_conversation_found_by_its_words(self):
        self.ask("(say)<b>bold</b> words")
        self.set("title", "<img src=x onerror=window.broken=1> & more")
        self.press_id("new")
        self.ask("(say)other")
        self.assertEqual(self.titles(), ["(say)other", "<img src=x onerror=window.broken=1> & more"])
        self.set("filter", "BOLD")
        self.assertEqual(len(self.titles()), 1)
        self.set("filter", "nowhere")
        self.assertEqual(self.titles(), [])
        self.assertIsNone(self.page.run("window.broken"))
        self.check_no_problem()

    def test_what_is_deleted_comes_back_when_one_wishes(self):
        self.ask("(say)kept")
        self.press_id("delete")
        self.assertEqual(self.titles(), [])
        self.assertEqual(self.page.run("Object.keys(localStorage).filter(key => key.includes('conversation.')).length"), 0)
        self.page.run("[...document.querySelectorAll('#toast button')][0].click()")
        self.assertEqual(self.texts(".turn .text"), ["(say)kept", "kept"])
        self.open_again()
        self.assertEqual(self.titles(), ["(say)kept"])

    def test_a_question_is_edited_and_both_ways_on_stay(self):
        self.ask("(say)one")
        self.ask("(say)two")
        self.press_button("Edit", "#turns article:first-child")
        self.page.run("document.querySelector('.edit textarea').value = '(say)three'")
        self.press_button("Send", ".edit")
        self.finished()
        self.assertEqual(self.texts(".turn .text"), ["(say)three", "three"])
        self.assertEqual(self.text(".alternatives"), "‹2/2›")
        self.picture("alternatives")
        self.page.run("document.querySelector('.alternatives button').click()")
        self.assertEqual(self.texts(".turn .text"), ["(say)one", "one", "(say)two", "two"])
        self.open_again()
        self.assertEqual(self.texts(".turn .text"), ["(say)one", "one", "(say)two", "two"])
        self.check_no_problem()

    def test_an_answer_is_asked_for_again_and_edited(self):
        self.ask("(say)one")
        self.press_button("Retry")
        self.finished()
        self.assertEqual(self.text(".turn.assistant .alternatives"), "‹2/2›")
        self.press_button("Edit")
        self.page.run("document.querySelector('.edit textarea').value = 'written by me'")
        self.press_button("Save", ".edit")
        self.assertEqual(self.texts(".turn .text"), ["(say)one", "written by me"])
        self.assertEqual(self.text(".turn.assistant .alternatives"), "‹3/3›")

    def test_figures_of_an_answer(self):
        self.ask("(say)some words")
        self.assertRegex(self.text(".turn.assistant .figures"), r"^\d+ tokens · first after \d+ ms")
        self.assertIn("The prompt", self.page.run("document.querySelector('.figures').title"))

    def test_an_export_is_imported_again(self):
        with tempfile.TemporaryDirectory() as folder:
            self.page.download_to(folder)
            self.ask("(say)to keep")
            self.press_button("Retry")
            self.finished()
            self.press_id("export-all")
            path = self.downloaded(folder)
            with open(path, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["format"], "heddle-conversations")
            self.page.choose_files("import-file", [path])
            self.page.wait("document.querySelector('#toast span')")
            self.assertEqual(self.toast(), "0 conversations imported.")  # it is here already
            self.press_id("delete-all")
            self.assertEqual(self.titles(), [])
            self.page.run("document.getElementById('toast').replaceChildren()")
            self.page.choose_files("import-file", [path])
            self.page.wait("document.querySelector('#toast span')")
            self.assertEqual(self.toast(), "1 conversation imported.")
            self.assertEqual(self.texts(".turn .text"), ["(say)to keep", "to keep"])
            self.assertEqual(self.text(".turn.assistant .alternatives"), "‹2/2›")
        self.check_no_problem()

    def downloaded(self, folder):
        for _ in range(100):
            names = [name for name in os.listdir(folder) if name.endswith(".json")]
            if names:
                return os.path.join(folder, names[0])
            self.page.run("new Promise(done => setTimeout(() => done(true), 50))")
        raise AssertionError("nothing was downloaded")

    def import_text(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            self.page.run("document.getElementById('toast').replaceChildren()")
            self.page.choose_files("import-file", [file.name])
            self.page.wait("document.querySelector('#toast span')", 60)

    def test_hostile_files_change_nothing_and_say_why(self):
        for text in ("{", "[]", '{"format": "heddle-conversations", "version": 9, "conversations": []}', "\0" * 1000):
            self.import_text(text)
            self.assertIn("Nothing was imported", self.toast())
        self.assertEqual(self.titles(), [])
        self.check_no_problem()

    def test_what_is_imported_never_becomes_markup(self):
        message = {"id": "m1", "parent": None, "role": "assistant", "content": "\n\n".join(ATTACKS), "created": 1,
                   "reasoning": ATTACKS[0], "error": ATTACKS[0], "model": ATTACKS[0], "state": "failed",
                   "calls": [{"id": ATTACKS[0], "name": ATTACKS[0], "arguments": ATTACKS[0]}],
                   "files": [{"name": ATTACKS[0], "text": ATTACKS[0]}]}
        results = {"id": "m2", "parent": "m1", "role": "tool", "content": "", "created": 2,
                   "results": [{"id": "x", "name": ATTACKS[0], "content": ATTACKS[0]}]}
        conversation = {"version": 1, "id": "c1", "title": ATTACKS[0], "kind": "chat", "created": 1, "updated": 1,
                        "setup": {"system": ATTACKS[0], "tools": ATTACKS[0], "tool_choice": ATTACKS[0]}, "messages": [message, results]}
        self.import_text(json.dumps({"format": "heddle-conversations", "version": 1, "conversations": [conversation]}))
        self.assertEqual(self.titles(), [ATTACKS[0]])
        self.assertGreater(len(self.texts(".turn .call")), 1)
        self.assertIsNone(self.page.run("window.broken"))
        self.assertEqual(self.page.run("document.querySelectorAll('main img, main script, main iframe, .turn svg').length"), 0)
        self.check_no_problem()
        self.picture("hostile")

    def test_ten_thousand_messages(self):
        messages = [{"role": "assistant" if i % 2 else "user", "content": f"message *{i}*"} for i in range(10_000)]
        self.import_text(json.dumps(messages))
        self.assertEqual(self.toast(), "1 conversation imported.")
        self.assertEqual(self.page.run("document.querySelectorAll('article').length"), 60)
        self.assertEqual(self.text("article:last-child .text"), "message 9999")
        self.press_id("earlier")
        self.assertEqual(self.page.run("document.querySelectorAll('article').length"), 260)
        self.open_again()
        self.assertEqual(self.text("article:last-child .text"), "message 9999")
        self.check_no_problem()
        self.picture("long")

    def test_a_full_storage_is_said_and_room_is_used_again(self):
        self.ask("(say)one")
        # Characters until nothing more fits.
        self.page.run("(() => { for (let size = 1 << 22, i = 0; size >= 1; i++) {"
                      " try { localStorage.setItem('x' + i, 'x'.repeat(size)); } catch { size >>= 1; } } })()")
        self.ask("(say)two")
        self.assertIn("storage for this page is full", self.text("#banner"))
        self.assertTrue(self.page.run("!document.getElementById('banner').hidden"))
        self.assertEqual(self.texts(".turn.assistant .text"), ["one", "two"])
        self.picture("storage-full")
        self.page.run("Object.keys(localStorage).filter(key => key.startsWith('x')).forEach(key => localStorage.removeItem(key))")
        self.ask("(say)three")
        self.page.wait("document.getElementById('banner').hidden")
        self.open_again()
        self.assertEqual(self.texts(".turn.assistant .text"), ["one", "two", "three"])

    def test_damaged_and_newer_conversations_are_left_alone(self):
        self.page.run("localStorage.setItem('heddle.conversation.abc', '{\"version\": 99}')")
        self.page.run("localStorage.setItem('heddle.settings', '[')")
        self.open_again()
        self.assertIn("another version", self.text("#usage"))
        self.ask("(say)x")
        self.assertEqual(self.page.run("localStorage.getItem('heddle.conversation.abc')"), '{"version": 99}')
        self.check_no_problem()

    def test_two_tabs_show_the_same_and_lose_nothing(self):
        self.ask("(say)from one")
        one = self.page.tab()
        self.page.run("new Promise(done => setTimeout(() => done(true), 600))")
        two = self.page.new_tab()
        self.page.open(f"http://127.0.0.1:{PORT}/")
        self.assertEqual(self.texts(".turn.assistant .text"), ["from one"])
        self.ask("(say)from two")
        self.page.go_to_tab(one)
        self.page.wait("document.querySelectorAll('.turn.assistant').length === 2")
        self.ask("(say)again one")
        self.page.go_to_tab(two)
        self.page.wait("document.querySelectorAll('.turn.assistant').length === 3")
        self.drawn()
        self.assertEqual(self.texts(".turn.assistant .text"), ["from one", "from two", "again one"])
        self.press_id("delete")
        self.page.go_to_tab(one)
        self.page.wait("document.querySelectorAll('.turn').length === 0")
        self.check_no_problem()


class Asking(WebPageCase):
    """Setup, files and keys of a message."""

    def attach(self, name, data):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as file:
            file.write(data)
        self.page.choose_files("attach-file", [path])

    def setUp(self):
        super().setUp()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_a_text_file_goes_along(self):
        self.attach("<b>notes.md", "(say)from the file".encode())
        self.page.wait("document.querySelectorAll('#files li').length === 1")
        self.picture("file")
        self.ask("What does it say?")
        self.assertIn("from the file", self.texts(".turn.assistant .text")[0])
        self.assertIn("<b>notes.md", self.text(".turn.user .files summary"))
        self.assertEqual(self.texts("#files li"), [])
        self.check_no_problem()

    def test_files_that_are_no_text_or_too_large_are_refused(self):
        for name, data, reason in (("a.bin", b"\xff\xfe\0", "no text in UTF-8"), ("b.txt", b"x" * (256 * 1024 + 1), "files can have up to 256 KiB")):
            self.attach(name, data)
            self.page.wait(f"document.querySelector('#toast span')?.textContent.includes('{reason}')")
        self.assertEqual(self.texts("#files li"), [])

    def test_a_wrong_setup_is_said_at_its_field_and_the_message_stays(self):
        self.set("tools", "[{")
        self.write("(say)x")
        self.assertIn("Tools must be JSON", self.text("#setup-error"))
        self.assertEqual(self.page.run("document.activeElement.id"), "tools")
        self.assertEqual(self.page.run("document.getElementById('prompt').value"), "(say)x")
        self.assertEqual(self.texts(".turn"), [])
        self.picture("setup-error")
        self.set("tools", "")
        self.page.run("document.getElementById('composer').requestSubmit()")
        self.finished()
        self.assertEqual(self.texts(".turn.assistant .text"), ["x"])
        self.assertTrue(self.page.run("document.getElementById('setup-error').hidden"))

    def test_formulas_and_colours(self):
        self.ask("(say)Costs $5 or $6; $x^2$ and \\(\\frac{1}{2}\\), $\\unknown{x}$.\n\n$$\\sum_{i=1}^n i$$\n\n```js\nlet x = 1; // one\n```")
        self.assertEqual(self.page.run("document.querySelectorAll('.turn math').length"), 3)
        self.assertIn("Costs $5 or $6;", self.text(".turn.assistant p"))
        self.assertEqual(self.texts(".turn.assistant p code"), ["$\\unknown{x}$"])
        self.assertEqual(self.texts(".hl-keyword"), ["let"])
        self.check_no_problem()

    def test_a_broken_answer_keeps_what_came(self):
        self.ask("(breaks)")
        self.assertEqual(self.texts(".turn.assistant .text"), ["Once"])
        self.assertIn("the engine broke", self.text(".turn.assistant .error"))
        self.assertIn("Continue", self.texts(".turn.assistant .foot button"))

    def test_keys(self):
        self.page.run("document.activeElement.blur()")
        for key, seen in (("?", "document.getElementById('help-dialog').open"), ("s", "document.getElementById('settings').open"),
                          ("f", "document.activeElement.id === 'filter'")):
            self.page.press(key, text=key)
            self.assertTrue(self.page.run(seen), key)
            if key == "?":
                self.page.run("document.getElementById('help-dialog').close()")
        self.page.run("document.activeElement.blur()")
        self.page.press("l", text="l")
        self.assertEqual(self.page.run("document.getElementById('live').offsetWidth"), 0)
        self.page.press("/", text="/")
        self.assertEqual(self.page.run("document.activeElement.id"), "prompt")
        self.ask("(say)x")
        self.page.press("ArrowUp")
        self.assertEqual(self.page.run("document.querySelector('.edit textarea').value"), "(say)x")
        self.page.press("Escape")
        self.assertEqual(self.page.run("document.querySelectorAll('.edit').length"), 0)
        self.page.run("document.activeElement.blur()")
        self.page.press("n", text="n")
        self.assertEqual(self.texts(".turn"), [])
        self.assertEqual(len(self.titles()), 1)

    def test_the_live_view_explains_its_words(self):
        self.page.wait("document.querySelectorAll('#figures dd').length >= 8")
        self.assertEqual(self.page.run("[...document.querySelectorAll('#figures > div')].filter(div => !div.title).length"), 0)
        self.assertIn("KV cache", self.text("#glossary"))
        self.assertEqual(len(self.texts("#pages .key")), 3)

    def test_the_list_lies_over_the_chat_on_a_phone(self):
        self.page.resize(360, 740, mobile=True)
        self.open_again()
        self.ask("(say)x")
        self.assertEqual(self.page.run("document.getElementById('list').offsetWidth"), 0)
        self.press_id("list-toggle")
        self.assertLessEqual(self.page.run("document.documentElement.scrollWidth"), 360)
        self.picture("phone-list")
        self.page.press("Escape")
        self.assertEqual(self.page.run("document.getElementById('list').offsetWidth"), 0)
        self.press_id("list-toggle")
        self.press_id("new")
        self.assertEqual(self.texts(".turn"), [])
        self.assertEqual(self.page.run("document.getElementById('list').offsetWidth"), 0)


class SlowAnswers(WebPageCase):
    def port(self):
        return SLOW_PORT

    def test_a_reload_in_mid_answer_keeps_what_came(self):
        self.write("(say)" + "some words " * 50)
        self.page.wait("(document.querySelector('.turn.assistant .text')?.textContent.length ?? 0) > 20")
        self.open_again()
        kept = self.texts(".turn.assistant .text")[0]
        self.assertGreater(len(kept), 10)
        self.assertIn("not finished", self.text(".turn.assistant .foot"))
        self.assertIn("Continue", self.texts(".turn.assistant .foot button"))
        self.picture("interrupted")

    def test_a_stopped_answer_keeps_what_came_and_another_conversation_goes_on_meanwhile(self):
        self.write("(say)" + "some words " * 50)
        self.page.wait("(document.querySelector('.turn.assistant .text')?.textContent.length ?? 0) > 20")
        self.press_id("new")
        self.ask("(say)short")
        self.assertEqual(self.texts(".turn.assistant .text"), ["short"])
        self.page.run("document.querySelectorAll('#conversations button:first-child')[1].click()")
        self.page.wait("!document.getElementById('halt').hidden")
        self.page.press("Escape")
        self.finished()
        self.assertIn("stopped", self.text(".turn.assistant .figures"))
        self.assertIn("some words some", self.texts(".turn.assistant .text")[0])
        self.check_no_problem()

    def test_a_server_that_is_gone_is_said(self):
        process, port = start(START)
        self.page.open(f"http://127.0.0.1:{port}/")
        self.ask("(say)x")
        process.terminate()
        process.wait()
        self.ask("(say)y")
        self.assertEqual(self.text(".turn .error"), "The server cannot be reached.")
        self.page.wait("document.getElementById('state').textContent === 'not reachable'")
        self.picture("gone")


class TextPage(WebPageCase):
    """The page of a model that has no chat template."""

    def port(self):
        return TEXT_PORT

    def whole(self):
        return "".join(self.texts(".turn .text"))

    def test_it_says_what_the_model_does_and_offers_no_chat(self):
        shown = self.page.run("document.getElementById('hello').innerText")
        self.assertIn("goes on with a text", shown)
        self.assertNotIn("Ask the model", shown)
        self.page.run("document.getElementById('settings').open = true")
        for name in ("system", "thinking", "tools", "attach"):
            self.assertTrue(self.page.run(f"document.getElementById('{name}').offsetWidth === 0"), name)
        self.assertTrue(self.page.run("document.getElementById('temperature').offsetWidth > 0"))
        self.picture("text-empty")

    def test_a_text_goes_on_again_and_further(self):
        self.ask("I begin (say) and <b>go</b> on.")
        text = "I begin (say) and <b>go</b> on." + " and <b>go</b> on."
        self.assertEqual(self.whole(), text)
        self.press_button("Retry")
        self.finished()
        self.assertEqual(self.whole(), text)
        self.press_button("Continue")
        self.finished()
        self.assertTrue(self.whole().startswith(text) and len(self.whole()) > len(text), self.whole())
        self.picture("text")
        self.check_no_problem()

    def test_an_error_is_shown_and_taken_away_by_the_next_try(self):
        self.ask("(full)")
        self.assertIn("too many requests", self.text(".error[role=alert]:not(#setup-error)"))
        self.press_button("Retry")
        self.finished()
        self.assertEqual(len(self.texts(".turn .error")), 1)


class DemoPage(WebPageCase):
    """With a real model, which knows tools and has adapters, behind an API key."""

    def port(self):
        return DEMO_PORT

    def setUp(self):
        if DEMO_PORT is None:
            self.skipTest("no --heddle")
        super().setUp()
        self.set("temperature", "0")

    def enter_key(self):
        self.set("key", KEY)
        self.page.wait("document.getElementById('model').options.length === 3")
        self.page.problems.clear()  # the browser itself notes the status 401

    def check_no_problem(self):
        # The browser itself notes that this key, which is no admin key, may not see the live view.
        self.assertEqual([problem for problem in self.page.problems if "/debug/stats" not in problem], [])

    def test_a_missing_key_is_said_and_asked_for(self):
        self.ask("hello")
        self.assertIn('Enter a key under "Setup"', self.text(".turn .error"))
        self.assertEqual(self.page.run("document.activeElement.id"), "key")
        self.enter_key()
        self.press_button("Retry")
        self.finished()
        self.assertEqual(self.texts(".turn .error"), [])
        self.assertTrue(self.texts(".turn.assistant .text")[0])

    def test_an_adapter_is_chosen(self):
        self.enter_key()
        self.assertEqual(self.texts("#model optgroup option"), ["pirate", "upper"])
        self.set("model", "pirate")
        self.ask("What is 3 + 4?")
        self.assertTrue(self.texts(".turn.assistant .text")[0].startswith("Arr!"))
        self.assertEqual(self.text(".turn.assistant .model"), "pirate")
        self.open_again()
        self.enter_key()
        self.assertEqual(self.page.run("document.getElementById('model').value"), "pirate")
        self.picture("adapter")

    def test_a_tool_is_called_and_answered(self):
        self.enter_key()
        self.press_id("example-tools")
        self.ask("What is the weather in Paris?")
        self.assertEqual(self.texts(".call-name code"), ["get_weather"])
        self.assertIn('"Paris"', self.text(".call pre"))
        self.picture("tool-call")
        self.page.run("document.querySelector('form.calls textarea').value = '{\"temperature\": 20, \"condition\": \"sunny\"}'")
        self.page.run("document.querySelector('form.calls').requestSubmit()")
        self.finished()
        self.assertIn("20", self.texts(".turn.assistant:last-child .text")[0])
        self.assertEqual(self.page.run("document.querySelectorAll('form.calls').length"), 0)
        self.check_no_problem()
        self.picture("tool")

    def test_an_answer_fits_a_schema(self):
        self.enter_key()
        self.set("answer_format", "schema")
        self.set("schema", '{"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": false}')
        self.ask("What is 3 + 4?")
        self.assertIn(json.loads(self.text(".turn.assistant .text code"))["n"], range(1, 10))
        self.picture("schema")

    def test_a_cut_answer_goes_on_where_it_ended(self):
        self.enter_key()
        self.set("max_tokens", "4")
        self.ask("Count from 1 to 9.")
        begun = self.texts(".turn.assistant .text")[0]
        self.assertIn("cut at the limit", self.text(".turn.assistant .figures"))
        self.set("max_tokens", "")
        self.press_button("Continue")
        self.finished()
        whole = self.texts(".turn.assistant .text")
        self.assertEqual(len(whole), 1)
        self.assertTrue(whole[0].startswith(begun) and len(whole[0]) > len(begun), whole)


def start(program, *flags):
    """The process and its port."""
    process = subprocess.Popen([program, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return process, int(re.search(r"\d+", process.stdout.readline()).group())


def start_demo(program, adapters):
    """heddle with the demo model, and its port."""
    command = [program, "serve", "demo", "--port", "0", "--api-key", KEY, "--lora-dir", adapters]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found:
            threading.Thread(target=process.stdout.read, daemon=True).start()  # its log goes nowhere
            return process, int(found.group(1))
    raise RuntimeError("heddle did not start:\n" + "".join(lines))


def main():
    global PORT, TEXT_PORT, SLOW_PORT, DEMO_PORT, START, SCREENSHOTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--start", required=True)
    parser.add_argument("--heddle")
    parser.add_argument("--adapters")
    parser.add_argument("--screenshots")
    options, rest = parser.parse_known_args()
    if not os.environ.get("HEDDLE_BROWSER_TESTS"):
        print("skipped: a browser's timing under load decides it; set HEDDLE_BROWSER_TESTS=1")
        sys.exit(77)
    if not browser.find():
        print("skipped: no Chromium here (Debian: apt-get install chromium)")
        sys.exit(77)
    SCREENSHOTS = options.screenshots
    START = options.start
    server, PORT = start(START)
    texts, TEXT_PORT = start(START, "--no-chat")
    slow, SLOW_PORT = start(START, "--step-us=30000")
    processes = [server, texts, slow]
    if options.heddle:
        demo, DEMO_PORT = start_demo(options.heddle, options.adapters)
        processes.append(demo)
    try:
        result = unittest.main(argv=[sys.argv[0], *rest], exit=False).result
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
