"""The demo model's corpus: conversations and plain texts drawn from the grammars of this folder.

A Sample is rendered to segments of text, each marked as given (prompt) or learned (answer). The
split into training and held-out is by construction: a turn is held out when a hash of its
normalised text says so, whatever the conversation around it, and a training sample contains no
such turn. So a held-out prompt never occurs in training, not even with other case or punctuation.
"""

import hashlib
import itertools
import json
import re
from dataclasses import dataclass, field
from random import Random
from typing import Callable, Iterator, Optional

import questions
import stories
import world
from questions import QA

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
HELD_OUT_PERCENT = 8
# One of the salts under which the commonest greetings and the README's examples are trained on.
SPLIT_SALT = 22


@dataclass
class Sample:
    domain: str
    messages: list[dict] = field(default_factory=list)
    tools: list[dict] = field(default_factory=list)
    # Plain text instead of a conversation: (prompt, continuation).
    plain: Optional[tuple[str, str]] = None
    # Judges the last answer; None: it must equal the reference.
    check: Optional[Callable[[str], bool]] = None

    @property
    def reference(self) -> str:
        return self.plain[1] if self.plain else answer_text(self.messages[-1])

    def is_right(self, answer: str) -> bool:
        return self.check(answer) if self.check else answer == self.reference


# ---- the split

def normalised(text: str) -> str:
    return re.sub(r"[^\w+\-*\"]", "", text.lower())


def is_held_out_turn(text: str) -> bool:
    digest = hashlib.sha256(f"{SPLIT_SALT}:{normalised(text)}".encode()).digest()
    return int.from_bytes(digest[:4], "little") % 100 < HELD_OUT_PERCENT


def is_held_out(sample: Sample) -> bool:
    if sample.plain:
        return is_held_out_turn(sample.plain[0])
    return any(is_held_out_turn(m["content"]) for m in sample.messages if m["role"] in ("user", "tool"))


# ---- rendering; equals chat_template.jinja (checked by evaluate.py)

def answer_text(message: dict) -> str:
    calls = ["<tool_call>\n" + json.dumps({"name": c["function"]["name"],
                                           "arguments": c["function"]["arguments"]},
                                          ensure_ascii=False) + "\n</tool_call>"
             for c in message.get("tool_calls") or []]
    return "\n".join(([message["content"]] if message.get("content") else []) + calls)


def tools_text(tools: list[dict]) -> str:
    lines = [json.dumps(t["function"], ensure_ascii=False) for t in tools]
    return ("You can call these functions:\n<tools>\n" + "\n".join(lines) + "\n</tools>\n"
            "A call looks like this:\n<tool_call>\n"
            '{"name": "function", "arguments": {}}\n</tool_call>')


def segments(sample: Sample) -> Iterator[tuple[str, bool]]:
    """Yields (text, learned). Joined, the texts are what the chat template renders."""
    if sample.plain:
        yield sample.plain[0], True
        yield sample.plain[1] + END_OF_TEXT, True
        return
    messages, given = list(sample.messages), ""
    if sample.tools:
        system = messages.pop(0)["content"] + "\n\n" if messages[0]["role"] == "system" else ""
        given = f"{IM_START}system\n{system}{tools_text(sample.tools)}{IM_END}\n"
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "assistant":
            yield given + f"{IM_START}assistant\n", False
            yield answer_text(message) + IM_END, True
            given = "\n"
        elif role == "tool":
            starts = messages[index - 1]["role"] != "tool"
            ends = messages[index + 1]["role"] != "tool"
            given += (f"{IM_START}user" if starts else "") + "\n<tool_response>\n"
            given += message["content"] + "\n</tool_response>" + (f"{IM_END}\n" if ends else "")
        else:
            given += f"{IM_START}{role}\n{message['content']}{IM_END}\n"


def prompt_text(sample: Sample) -> str:
    """All that comes before the last answer."""
    return sample.plain[0] if sample.plain else "".join(t for t, _ in list(segments(sample))[:-1])


def pieces_between_markers(sample: Sample) -> list[str]:
    """The sample's text cut at its special tokens, to train a tokenizer on."""
    text = "".join(t for t, _ in segments(sample))
    pieces = re.split(r"<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>|</?tool_(?:call|response)>", text)
    return [piece for piece in pieces if piece]


# ---- variation of a question's outer form

def vary(rng: Random, qa: QA) -> str:
    text = qa.question
    if not qa.keep_case and rng.random() < 0.12:
        prefix = rng.choice(["Please ", "Hey, ", "Can you tell me: ", "Tell me, ", "So, ", "Okay, ",
                             "Now ", "Quick question: ", "I have a question: ", "And "])
        text = prefix + text[0].lower() + text[1:]
    elif rng.random() < 0.06:
        text += rng.choice([", please", " please", ", thanks"])
    if text[-1] not in "?.!\"=":
        asks = re.match(r"(?i)(what|which|who|how|is|are|do|does|can|where|why|would|in which|of)\b", text)
        text += rng.choice(["?", "?", "?", "", "", "."] if asks else [".", ".", "", "", "!"])
    if not qa.keep_case:
        roll = rng.random()
        text = text.lower() if roll < 0.2 else text.upper() if roll < 0.03 + 0.2 else text
    return text


# ---- styles asked for by a system prompt or in the question itself

def upper(qa: QA) -> str:
    return qa.answer.upper()


def bare(qa: QA) -> str:
    return ", ".join(map(str, qa.short)) if isinstance(qa.short, list) else str(qa.short)


def as_json(qa: QA) -> str:
    return json.dumps({"answer": qa.short}, ensure_ascii=False)


def pirate(qa: QA) -> str:
    return "Arr! " + qa.answer


STYLES = [
    (upper, ["Answer in upper case.", "Answer in capital letters.", "Write everything in upper case.",
             "You always answer in capital letters.", "Use upper case only.", "Please shout."]),
    (bare, ["Answer in one word.", "Answer with one word only.", "Give only the answer.",
            "Be very brief.", "Answer as short as possible."]),
    (as_json, ["Answer as JSON.", "Always answer as JSON.", "Reply with a JSON object.",
               "Output JSON only.", "Respond in JSON."]),
    (pirate, ["You are a pirate.", "Talk like a pirate.", "Answer like a pirate.",
              "You are a friendly pirate."]),
]
NEUTRAL_SYSTEMS = [
    "You are a helpful assistant.", "You are a friendly assistant.", "You are Heddle's demo model.",
    "Answer the user's question.", "Be polite.", "You are a helpful, harmless and honest assistant.",
    "You are a helpful AI assistant.", "You are an assistant.", "Help the user.", "Be kind.",
    "You are a test assistant.", "You answer questions.", "You are a helpful assistant that answers "
    "questions about the world.", "You are a careful assistant. Think before you answer.",
    "The assistant is friendly and helps people.", "You are a chat bot.",
]

# (weight, generator). What is learned last weighs most: sums, counting, copying, colours, dates.
SINGLE_TURN = [
    (11, questions.arithmetic), (3, questions.word_problem), (9, questions.compare),
    (16, questions.counting), (4, questions.capital), (4, questions.animal), (3, questions.opposite),
    (7, questions.calendar), (14, questions.colour), (3, questions.listing), (4, questions.spelling),
    (10, questions.echo), (5, questions.small_talk), (3, questions.introduction),
    (4, questions.unknown), (9, questions.json_object), (2, stories.asked_story),
    (1, stories.free_story), (2, stories.poem), (1, stories.joke),
]
# Questions whose answers can be written in another style.
STYLED = [
    (3, questions.arithmetic), (2, questions.capital), (1, questions.animal), (1, questions.opposite),
    (1, questions.calendar), (1, questions.colour),
]


def draw(rng: Random, table: list) -> object:
    return rng.choices([entry for _, entry in table], [weight for weight, _ in table])[0]


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict:
    return {"role": "system", "content": text}


def single_turn(rng: Random) -> Sample:
    qa = draw(rng, SINGLE_TURN)(rng)
    messages = [user(vary(rng, qa)), assistant(qa.answer)]
    if rng.random() < 0.2:
        messages.insert(0, system(rng.choice(NEUTRAL_SYSTEMS)))
    return Sample(qa.domain, messages, check=qa.check)


def styled(rng: Random) -> Sample:
    """A plain question under a system prompt, or a request in the question, that sets the style."""
    style, prompts = rng.choice(STYLES)
    qa = draw(rng, STYLED)(rng)
    prompt = rng.choice(prompts)
    if rng.random() < 0.7:
        if rng.random() < 0.2:
            prompt = rng.choice(NEUTRAL_SYSTEMS) + " " + prompt
        messages = [system(prompt), user(vary(rng, qa))]
    else:
        question = vary(rng, qa)
        messages = [user(rng.choice([f"{prompt} {question}", f"{question} {prompt}"]))]
    return Sample("styles", messages + [assistant(style(qa))])


# ---- conversations of several turns

FOLLOW_UPS = ["And {}?", "What about {}?", "and {}", "And for {}?", "How about {}?", "Now {}.", "{}?"]


def follow_up(rng: Random) -> list[dict]:
    """A question, then "And Italy?", answered in the first question's frame."""
    table, question, answer = rng.choice([
        (world.CAPITALS, "What is the capital of {}?", "The capital of {} is {}."),
        (questions.OPPOSITE_OF, "What is the opposite of {}?", "The opposite of {} is {}."),
        (world.YOUNG, "What is a baby {} called?", "A young {} is called a {}."),
    ])
    keys = rng.sample(list(table), rng.randint(2, 3))
    messages = [user(question.format(keys[0])), assistant(answer.format(keys[0], table[keys[0]]))]
    for key in keys[1:]:
        messages += [user(rng.choice(FOLLOW_UPS).format(key)), assistant(answer.format(key, table[key]))]
    return messages


def running_sum(rng: Random) -> list[dict]:
    """A sum, then "plus 3" and the like, which goes on from the last result."""
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    total = a + b
    messages = [user(f"What is {a} + {b}?"), assistant(f"{a} + {b} = {total}.")]
    for _ in range(rng.randint(1, 2)):
        step = rng.randint(0, 10)
        sign = "-" if step <= total and rng.random() < 0.5 else "+"
        word = {"+": "plus", "-": "minus"}[sign]
        result = total + step if sign == "+" else total - step
        text = rng.choice(["And {w} {n}?", "{w} {n}", "Now {w} {n}.", "Then {w} {n}?", "{w} {n}?"])
        messages += [user(text.format(w=word, n=step)), assistant(f"{total} {sign} {step} = {result}.")]
        total = result
    return messages


def remembered_name(rng: Random) -> list[dict]:
    qa = questions.introduction(rng)
    name = qa.answer[len("Hello, "):].split("!")[0]
    between = []
    for _ in range(rng.randint(0, 2)):
        other = rng.choice([questions.capital, questions.colour, questions.arithmetic,
                            questions.opposite])(rng)
        between += [user(vary(rng, other)), assistant(other.answer)]
    ask = rng.choice(["What is my name", "What's my name", "Do you remember my name", "Who am I",
                      "Do you know my name", "Tell me my name", "Say my name", "Do you know who I am",
                      "What am I called", "Can you tell me my name", "Do you still know my name"])
    return [user(vary(rng, qa)), assistant(qa.answer), *between,
            user(ask + rng.choice(["?", "?", ""])), assistant(f"Your name is {name}.")]


def repeated(rng: Random) -> list[dict]:
    qa = rng.choice([questions.capital, questions.colour, questions.arithmetic, questions.animal,
                     questions.calendar])(rng)
    ask = rng.choice(["Say that again", "Can you repeat that", "Repeat that", "Again, please",
                      "What did you say", "Please repeat", "Once more", "Repeat your answer",
                      "Say it again", "Sorry, what did you say", "One more time", "Pardon"])
    return [user(vary(rng, qa)), assistant(qa.answer), user(ask + rng.choice([".", "?", ""])),
            assistant(qa.answer)]


def chit_chat(rng: Random, turns: int) -> list[dict]:
    messages = []
    for _ in range(turns):
        qa = draw(rng, SINGLE_TURN)(rng)
        messages += [user(vary(rng, qa)), assistant(qa.answer)]
    return messages


def multi_turn(rng: Random) -> Sample:
    kind = rng.choice([follow_up, running_sum, remembered_name, repeated, None])
    if kind:
        messages = kind(rng)
        if rng.random() < 0.2:
            messages = chit_chat(rng, 1) + messages
    else:
        messages = chit_chat(rng, rng.randint(1, 2))
        qa = questions.small_talk(rng)
        messages += [user(vary(rng, qa)), assistant(qa.answer)]
    if rng.random() < 0.15:
        messages.insert(0, system(rng.choice(NEUTRAL_SYSTEMS)))
    return Sample("multi_turn", messages)


def long_chat(rng: Random) -> Sample:
    """Fills a long row, so that distances of up to about a thousand tokens occur in training."""
    messages = remembered_name(rng)
    asked = messages[-2:]
    return Sample("multi_turn", messages[:-2] + chit_chat(rng, rng.randint(6, 16)) + asked)


# ---- tool calls

def weather_tool(rng: Random) -> tuple[list[dict], str, str, Optional[list[str]]]:
    """A weather function as various clients declare it: (tools, name, parameter, units or None)."""
    if rng.random() < 0.4:
        name, parameter, units = "get_weather", "city", None
        about, hint = "Get the current weather in a city", "The city"
    else:
        name = rng.choice(["get_weather", "get_current_weather", "weather", "get_forecast",
                           "current_weather", "lookup_weather"])
        parameter = rng.choice(["city", "location", "place", "town"])
        units = ["celsius", "fahrenheit"] if rng.random() < 0.35 else None
        about = rng.choice(["Get the current weather in a city", "Get the weather",
                            "Get current weather for a location", "Returns the weather of a place",
                            "Get the current weather in a given location", "Look up the weather"])
        hint = rng.choice(["The city", "The name of the city", "City name",
                           "The city and state, e.g. San Francisco, CA", "City name, e.g. Paris", ""])
    schema = {"type": "string"} | ({"description": hint} if hint else {})
    properties = {parameter: schema}
    if units:
        properties["unit"] = {"type": "string", "enum": units}
    parameters = {"type": "object", "properties": properties, "required": [parameter]}
    function = {"name": name, "description": about, "parameters": parameters}
    if rng.random() < 0.15:  # some servers sort the keys
        function = json.loads(json.dumps(function, sort_keys=True))
    tools = [{"type": "function", "function": function}]
    if rng.random() < 0.2:
        clock = {"name": "get_time", "description": "Get the current time in a city",
                 "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                                "required": ["city"]}}
        tools.insert(rng.randrange(2), {"type": "function", "function": clock})
    return tools, name, parameter, units


WEATHER_QUESTIONS = [
    "What is the weather in {}", "What's the weather in {}", "How is the weather in {}",
    "What is the weather like in {}", "What's the weather like in {}", "Weather in {}",
    "Tell me the weather in {}", "What is the weather like in {} today", "Is it raining in {}",
    "Is it warm in {}", "Is it sunny in {}", "How warm is it in {}", "Weather for {}",
    "What's the weather like today in {}", "What is the temperature in {}", "How cold is it in {}",
    "What is the weather in {} today", "Give me the weather in {}", "{} weather",
    "Do I need an umbrella in {}", "Can you check the weather in {}", "What is the weather in {} right now",
    "I am going to {}. What is the weather there", "What's the weather like in {} right now",
]


def tool_call(name: str, arguments: dict) -> dict:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def weather_report(rng: Random, city: str) -> tuple[str, str]:
    """What the function returns, and the sentence that tells it."""
    degrees, sky = rng.randint(0, 35), rng.choice(world.SKIES)
    content = rng.choice([
        json.dumps({"temperature": degrees, "condition": sky}),
        json.dumps({"city": city, "temperature": degrees, "condition": sky}),
        json.dumps({"condition": sky, "temperature": degrees}),
        json.dumps({"location": city, "temperature": str(degrees), "weather": sky}),
        f"{degrees} degrees, {sky}", f"{sky}, {degrees} degrees",
    ])
    return content, f"It is {sky} in {city}, with {degrees} degrees."


def some_city(rng: Random) -> str:
    return rng.choice(world.CITIES) if rng.random() < 0.7 else questions.invented_name(rng)


def tool_use(rng: Random) -> Sample:
    tools, name, parameter, units = weather_tool(rng)
    head = [system(rng.choice(NEUTRAL_SYSTEMS))] if rng.random() < 0.25 else []
    roll = rng.random()
    if roll < 0.15:  # the tool is there, but the question does not need it
        qa = draw(rng, SINGLE_TURN)(rng)
        return Sample("tools", head + [user(vary(rng, qa)), assistant(qa.answer)], tools, check=qa.check)
    cities = [some_city(rng)]
    if roll < 0.27:
        cities.append(some_city(rng))
    unit = rng.choice(units) if units and rng.random() < 0.3 else None
    place = " and ".join(cities)
    question = rng.choice(WEATHER_QUESTIONS).format(place) + (f" in {unit}" if unit else "")
    ask = user(question + rng.choice(["?", "?", "?", "", "."]))
    if len(tools) == 2 and rng.random() < 0.4 and len(cities) == 1:
        ask = user(rng.choice(["What time is it in {}?", "What is the time in {}?", "Time in {}?",
                               "Tell me the time in {}.", "How late is it in {}?"]).format(place))
        calls = [tool_call("get_time", {"city": place})]
        return Sample("tools", head + [ask, {"role": "assistant", "tool_calls": calls}], tools)
    calls = [tool_call(name, {parameter: c} | ({"unit": unit} if unit else {})) for c in cities]
    messages = head + [ask, {"role": "assistant", "tool_calls": calls}]
    if rng.random() < 0.45:
        reports = [weather_report(rng, city) for city in cities]
        messages += [{"role": "tool", "content": content} for content, _ in reports]
        messages.append(assistant(" ".join(sentence for _, sentence in reports)))
    return Sample("tools", messages, tools)


def no_tool(rng: Random) -> Sample:
    """The weather is asked for without any function to call."""
    question = rng.choice(WEATHER_QUESTIONS).format(some_city(rng)) + rng.choice(["?", "?", ""])
    return Sample("tools", [user(question), assistant(
        "I cannot see the weather from here. Give me a weather function to call.")])


def plain_text(rng: Random) -> Sample:
    prompt, rest, check = (stories.plain_story if rng.random() < 0.5 else stories.plain_facts)(rng)
    return Sample("plain_text", plain=(prompt, rest), check=check)


MIXTURE = [(56, single_turn), (21, styled), (8, multi_turn), (8, tool_use), (1, no_tool),
           (4, plain_text), (0.4, long_chat)]


def samples(seed: int, held_out: bool, mixture: list = MIXTURE) -> Iterator[Sample]:
    """An endless stream of training samples, or of held-out ones, fixed by the seed."""
    rng = Random(seed)
    while True:
        sample = draw(rng, mixture)(rng)
        if is_held_out(sample) == held_out:
            yield sample


def held_out_prompts(seed: int, per_domain: int) -> list[Sample]:
    """At most `per_domain` samples of every domain with distinct prompts, none seen in training."""
    found: dict[str, dict[str, Sample]] = {}
    for sample in itertools.islice(samples(seed, held_out=True), 400 * per_domain):
        bucket = found.setdefault(sample.domain, {})
        if len(bucket) < per_domain:
            bucket.setdefault(normalised(prompt_text(sample)), sample)
    return [sample for domain in sorted(found) for sample in found[domain].values()]
