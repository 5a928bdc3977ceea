#!/usr/bin/env python3
"""Draws the pictures of the docs from their sources: docs/pictures/NAME.txt becomes NAME.svg.

The picture is a table of stops with a line through a grid of folders, so that nothing in it can
overlap; a text that is wider than its column is an error. A source that names a file which does
not exist is an error, too.

    docs/pictures/draw.py            writes every picture anew
    docs/pictures/draw.py --count    also prints how many stops the way makes, in how many rooms
"""
import dataclasses
import itertools
import pathlib
import sys
from xml.sax.saxutils import escape

FOLDER = pathlib.Path(__file__).resolve().parent
SOURCE = FOLDER.parents[1]

# In pixels. Widths of letters are those of wide fonts (DejaVu Sans, DejaVu Sans Mono), so that
# text fits with whatever font a reader has.
MARGIN = 20
ROW = 22
SMALL = 12
TITLE = 16
MONO_WIDTH = 0.61
SANS_WIDTH = 0.66
NUMBER, THREAD, FILE, WHAT, ROOM, BACK = 30, 128, 182, 350, 34, 44
HEAD = 152  # names of rooms, upright
CARD, INK, FAINT = "#ffffff", "#1f2328", "#d0d7de"


@dataclasses.dataclass
class Stop:
    thread: str
    path: str
    what: str
    part: int

    @property
    def file(self):
        return self.path.rpartition("/")[2]


@dataclasses.dataclass
class Picture:
    title: str = ""
    note: str = ""
    rooms: list = dataclasses.field(default_factory=list)
    threads: dict = dataclasses.field(default_factory=dict)  # name: (colour, words)
    parts: list = dataclasses.field(default_factory=list)  # (colour, words)
    stops: list = dataclasses.field(default_factory=list)
    again: list = dataclasses.field(default_factory=list)  # (from, to, words), indices of stops

    def room_of(self, stop):
        """The column of a stop: the innermost room that its file is in."""
        inside = [room for room in self.rooms if stop.path.startswith(room + "/")]
        return self.rooms.index(max(inside, key=len))


def parse(text):
    picture = Picture()
    for number, line in enumerate(text.splitlines(), start=1):
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if not word or word == "#":
            continue
        if word in ("title", "note"):
            setattr(picture, word, rest)
        elif word == "room":
            picture.rooms.append(rest)
        elif word == "thread":
            name, colour, words = rest.split(None, 2)
            picture.threads[name] = (colour, words)
        elif word == "part":
            picture.parts.append(tuple(rest.split(None, 1)))
        elif word == "stop":
            thread, path, what = rest.split(None, 2)
            picture.stops.append(Stop(thread, path, what, len(picture.parts) - 1))
        elif word == "again":
            to, words = rest.split(None, 1)
            picture.again.append((len(picture.stops) - 1, int(to) - 1, words))
        else:
            raise ValueError(f"line {number}: no such thing as '{word}'")
    return picture


def check(picture):
    for stop in picture.stops:
        if not (SOURCE / stop.path).is_file():
            raise ValueError(f"there is no file {stop.path}")
        if stop.thread not in picture.threads:
            raise ValueError(f"there is no thread '{stop.thread}'")
        if not any(stop.path.startswith(room + "/") for room in picture.rooms):
            raise ValueError(f"{stop.path} is in none of the rooms")


def count(picture):
    """Stops by room (files of one room in a row are one stop), rooms, and returns to a room."""
    ways = [room for room, _ in itertools.groupby(map(picture.room_of, picture.stops))]
    rooms = len(set(ways))
    return len(ways), rooms, len(ways) - rooms


class Svg:
    def __init__(self, width, height, title):
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" font-size="{SMALL}" '
            f'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" fill="{INK}">',
            f"<title>{escape(title)}</title>"]

    def add(self, element):
        self.lines.append(element)

    def rect(self, x, y, width, height, colour, more=""):
        self.add(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{colour}"{more}/>')

    def text(self, x, y, words, room, more="", mono=False, size=SMALL):
        width = len(words) * size * (MONO_WIDTH if mono else SANS_WIDTH)
        if width > room:
            raise ValueError(f"'{words}' takes {width:.0f} pixels of {room}")
        font = ' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace"' if mono else ""
        self.add(f'<text x="{x}" y="{y}"{font}{more}>{escape(words)}</text>')

    def done(self):
        return "\n".join(self.lines + ["</svg>", ""])


def draw(picture):
    check(picture)
    left = MARGIN + NUMBER + THREAD + FILE + WHAT
    top = MARGIN + 58 + HEAD
    grid = ROOM * len(picture.rooms)
    width = left + grid + BACK + MARGIN
    bottom = top + ROW * len(picture.stops)
    height = bottom + MARGIN
    svg = Svg(width, height, picture.title)
    svg.rect(0.5, 0.5, width - 1, height - 1, CARD, f' rx="8" stroke="{FAINT}"')
    svg.text(MARGIN, MARGIN + 14, picture.title, width - 2 * MARGIN,
             f' font-size="{TITLE}" font-weight="bold"', size=TITLE)
    svg.text(MARGIN, MARGIN + 36, picture.note, width - 2 * MARGIN)

    centers = [left + ROOM * i + ROOM / 2 for i in range(len(picture.rooms))]
    middles = [top + ROW * i + ROW / 2 for i in range(len(picture.stops))]
    points = [(centers[picture.room_of(stop)], y) for stop, y in zip(picture.stops, middles)]
    draw_legend(svg, picture, top)
    draw_bands(svg, picture, top, left + grid)
    for name, x in zip(picture.rooms, centers):
        svg.add(f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="{FAINT}"/>')
        svg.text(0, 0, name, HEAD,
                 f' transform="translate({x + 4} {top - 8}) rotate(-90)"', mono=True)
    draw_rows(svg, picture, middles)
    draw_way(svg, picture, points)
    for begin, end, words in picture.again:
        draw_return(svg, points[begin], points[end], left + grid + 14, words,
                    picture.parts[picture.stops[begin].part][0])
    return svg.done()


def draw_legend(svg, picture, top):
    for i, (colour, words) in enumerate(picture.parts):
        y = top - 12 - ROW * (len(picture.parts) - 1 - i)
        svg.add(f'<line x1="{MARGIN}" y1="{y - 4}" x2="{MARGIN + 40}" y2="{y - 4}" '
                f'stroke="{colour}" stroke-width="3"/>')
        svg.text(MARGIN + 50, y, words, NUMBER + THREAD + FILE)


def draw_bands(svg, picture, top, right):
    """The background of each run of stops on one thread, and the thread's name where it begins."""
    row = 0
    for thread, stops in itertools.groupby(picture.stops, key=lambda stop: stop.thread):
        size = len(list(stops))
        colour, words = picture.threads[thread]
        y = top + ROW * row
        svg.rect(MARGIN, y, right - MARGIN, ROW * size, colour)
        svg.text(MARGIN + NUMBER, y + 15, words, THREAD, ' font-weight="bold"')
        row += size


def draw_rows(svg, picture, middles):
    for i, (stop, y) in enumerate(zip(picture.stops, middles)):
        x = MARGIN + NUMBER
        svg.text(x - 8, y + 4, str(i + 1), NUMBER - 8, ' text-anchor="end"')
        svg.text(x + THREAD, y + 4, stop.file, FILE, mono=True)
        svg.text(x + THREAD + FILE, y + 4, stop.what, WHAT)


def draw_way(svg, picture, points):
    """The line from stop to stop, which changes columns half way between two rows."""
    for i in range(1, len(points)):
        (x1, y1), (x2, y2) = points[i - 1], points[i]
        colour = picture.parts[picture.stops[i].part][0]
        middle = (y1 + y2) / 2
        svg.add(f'<path d="M{x1} {y1}V{middle}H{x2}V{y2}" fill="none" stroke="{colour}" '
                'stroke-width="2.5" stroke-linejoin="round"/>')
    for stop, (x, y) in zip(picture.stops, points):
        svg.add(f'<circle cx="{x}" cy="{y}" r="5" fill="{picture.parts[stop.part][0]}"/>')


def draw_return(svg, begin, end, x, words, colour):
    (x1, y1), (x2, y2) = begin, end
    svg.add(f'<path d="M{x1 + 8} {y1}H{x}V{y2}H{x2 + 14}" fill="none" stroke="{colour}" '
            'stroke-width="1.5" stroke-dasharray="5 4"/>')
    svg.add(f'<path d="M{x2 + 8} {y2}l8 -4v8z" fill="{colour}"/>')
    svg.text(0, 0, words, y1 - y2, f' text-anchor="middle" fill="{colour}" '
             f'transform="translate({x + 16} {(y1 + y2) / 2}) rotate(-90)"')


def main():
    for source in sorted(FOLDER.glob("*.txt")):
        picture = parse(source.read_text(encoding="utf-8"))
        source.with_suffix(".svg").write_text(draw(picture), encoding="utf-8")
        if "--count" in sys.argv[1:]:
            stops, rooms, returns = count(picture)
            print(f"{source.stem}: {stops} stops in {rooms} rooms, {returns} of them returns")


if __name__ == "__main__":
    main()
