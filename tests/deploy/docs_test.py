"""The pages of docs/: pictures are what their sources say, and links lead somewhere."""
import importlib.util
import os
import pathlib
import re
import unittest

SOURCE = pathlib.Path(os.environ.get("HEDDLE_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PICTURES = SOURCE / "docs" / "pictures"
PAGES = [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").rglob("*.md"))]


def load_draw():
    spec = importlib.util.spec_from_file_location("draw", PICTURES / "draw.py")
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    return draw


def anchors(page):
    """The names that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class DocsTest(unittest.TestCase):
    def test_every_picture_is_what_its_source_says(self):
        draw = load_draw()
        sources = sorted(PICTURES.glob("*.txt"))
        self.assertTrue(sources)
        for source in sources:
            drawn = draw.draw(draw.parse(source.read_text(encoding="utf-8")))
            kept = source.with_suffix(".svg").read_text(encoding="utf-8")
            self.assertTrue(drawn == kept, f"{source.name}: draw it anew with docs/pictures/draw.py")

    def test_a_picture_of_a_file_that_does_not_exist_is_an_error(self):
        draw = load_draw()
        text = "room base\nthread main #ffffff main\npart #000000 all\nstop main base/none.cc nothing\n"
        with self.assertRaisesRegex(ValueError, "no file base/none.cc"):
            draw.draw(draw.parse(text))

    def test_a_text_that_is_wider_than_its_column_is_an_error(self):
        draw = load_draw()
        text = ("room base\nthread main #ffffff main\npart #000000 all\n"
                f"stop main base/check.h {'w' * 100}\n")
        with self.assertRaisesRegex(ValueError, "pixels"):
            draw.draw(draw.parse(text))

    def test_every_relative_link_leads_to_a_file_and_a_heading(self):
        for page in PAGES:
            text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                linked = page.parent / path if path else page
                self.assertTrue(linked.exists(), f"{page.name}: {target}")
                if anchor and linked.suffix == ".md":
                    self.assertIn(anchor, anchors(linked), f"{page.name}: {target}")


if __name__ == "__main__":
    unittest.main()
