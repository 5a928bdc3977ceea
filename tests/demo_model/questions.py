"""Single questions of the closed world with their answers, each drawn from a small grammar.

Every generator takes a random.Random and returns one QA. The question is written in one of many
phrasings; `corpus.py` varies it further (case, punctuation, politeness) and builds conversations.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Callable, Optional

import world


@dataclass
class QA:
    domain: str
    question: str
    answer: str
    # The bare answer, for "in one word" and JSON styles; None: the question takes no such style.
    short: Optional[object] = None
    # Accepts an answer other than `answer`; None: only `answer` itself is right.
    check: Optional[Callable[[str], bool]] = None
    # Questions that carry names or quoted text keep their case.
    keep_case: bool = False


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeio" else "a ") + noun


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---- greetings and small talk

GREETING_REPLY = "Hello! How can I help you?"
IDENTITY_REPLY = "I am the demo model of Heddle, a small language model that was trained from scratch."
ABILITY_REPLY = ("I can do small sums, count, tell short stories, answer simple questions, write JSON "
                 "and call a weather function.")
HEDDLE_REPLY = "Heddle is a daemon that serves language models. I am its demo model."
LOOM_REPLY = "A heddle is the part of a loom that lifts each warp thread at the right moment."
FEELING_REPLY = "I am fine, thank you. How can I help you?"
THANKS_REPLY = "You are welcome!"
BYE_REPLY = "Goodbye! Have a nice day."
TEST_REPLY = "This is a test. It works!"

SMALL_TALK = {
    GREETING_REPLY: [
        "Hi", "Hello", "Hey", "Hi there", "Hello there", "Hey there", "Good morning",
        "Good evening", "Good afternoon", "Good day", "Greetings", "Hello, Heddle", "Hi Heddle",
        "Hey Heddle", "Hello world", "Hello, demo model", "Hi, model", "Hello friend", "Hi friend",
        "Hello again", "Hi again", "Howdy", "Hello, can you help me", "Hi, can you help me",
        "Can you help me", "I need help", "Help me", "Help", "Is anybody there", "Are you there",
        "Hello, are you there", "Say hello", "Say hi", "Say hello to me", "Greet me", "Yo",
        "Good morning, Heddle", "Good evening, Heddle", "Hi hi", "Hello hello",
    ],
    IDENTITY_REPLY: [
        "Who are you", "What are you", "What is your name", "What's your name", "Tell me your name",
        "Introduce yourself", "Please introduce yourself", "Who am I talking to", "Hello, who are you",
        "Hi, who are you", "Hi, what are you", "Hi, what is your name", "What model are you",
        "Which model are you", "What kind of model are you", "Are you a robot", "Are you a human",
        "Are you a person", "Are you a language model", "Are you an AI", "Tell me about yourself",
        "Tell me who you are", "Say who you are", "Do you have a name", "Who is this",
        "What should I call you", "Describe yourself", "Are you ChatGPT", "Hey, who are you",
        "Can you introduce yourself", "So who are you", "And who are you", "Who made you",
        "Who trained you", "Where do you come from", "How were you made",
    ],
    ABILITY_REPLY: [
        "What can you do", "What do you know", "What can I ask you", "How can you help me",
        "What are you good at", "What are you able to do", "Tell me what you can do",
        "What can you help me with", "What can I do with you", "What should I ask you",
        "What questions can you answer", "Hi, what can you do", "Hello, what can you do",
        "Can you do anything", "What can I ask", "List your skills", "What are your skills",
        "What do you do", "Give me some examples of what you can do", "What else can you do",
    ],
    HEDDLE_REPLY: [
        "What is Heddle", "Tell me about Heddle", "What does Heddle do", "Explain Heddle",
        "Who is Heddle", "What is the Heddle daemon", "Do you know Heddle", "What's Heddle",
        "Can you tell me about Heddle", "Describe Heddle", "Is Heddle a daemon",
        "Can you explain Heddle", "Hi, what is Heddle", "So what is Heddle",
    ],
    LOOM_REPLY: [
        "What is a heddle", "What's a heddle", "What does a heddle do", "What is a heddle on a loom",
        "Explain what a heddle is", "Tell me what a heddle is", "What does the word heddle mean",
        "What is the meaning of heddle", "Do you know what a heddle is", "What is a loom heddle",
    ],
    FEELING_REPLY: [
        "How are you", "How are you today", "How are you doing", "How do you do", "Hello, how are you",
        "Hi, how are you", "How is it going", "How's it going", "How do you feel", "Are you well",
        "Are you fine", "What's up", "Hey, how are you", "How are you feeling", "Are you happy",
        "Hi, how is it going", "How are things", "Good morning, how are you",
        "How are you doing today", "Hi there, how are you", "Are you okay", "How have you been",
    ],
    THANKS_REPLY: [
        "Thanks", "Thank you", "Thank you very much", "Thanks a lot", "Many thanks", "Great, thanks",
        "Okay, thanks", "Thank you so much", "Cool, thank you", "Nice, thanks", "Good, thank you",
        "Perfect, thank you", "Thanks for your help", "Thank you for your help", "Well done",
        "Good job", "Great", "Very good", "That is right", "Thanks, that helps", "Perfect", "Nice",
    ],
    BYE_REPLY: [
        "Bye", "Goodbye", "Bye bye", "See you", "See you later", "Good night", "Farewell",
        "I have to go", "Thanks, bye", "Okay, bye", "Have a nice day", "See you tomorrow",
        "Until next time", "Goodbye, Heddle", "Bye, Heddle", "That is all", "I am leaving now",
        "Thank you and goodbye", "Good night, Heddle", "See you soon",
    ],
    TEST_REPLY: [
        "Test", "This is a test", "Testing", "Test test", "Just a test", "Is this a test", "Ping",
        "Does this work", "Does it work", "Are you working", "Is it working", "One two three test",
        "Say this is a test", "Say this is a test!", "This is only a test", "Testing, testing",
    ],
}


def small_talk(rng: Random) -> QA:
    answer = rng.choice(list(SMALL_TALK))
    return QA("greetings", rng.choice(SMALL_TALK[answer]), answer)


def introduction(rng: Random) -> QA:
    name = rng.choice(list(world.NAMES)) if rng.random() < 0.5 else invented_name(rng)
    question = rng.choice([
        "Hi, I am {}", "Hello, I am {}", "My name is {}", "Hello, my name is {}", "I am {}",
        "Hi, my name is {}", "Hello! I'm {}", "Hey, I'm {}", "Good morning, I am {}", "I'm {}",
        "Hi, {} here", "You can call me {}", "Call me {}", "This is {}", "People call me {}",
        "Good evening, my name is {}", "Please call me {}", "Hey there, my name is {}",
    ]).format(name)
    return QA("greetings", question, f"Hello, {name}! How can I help you?", keep_case=True)


def invented_name(rng: Random) -> str:
    syllables = [rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(1, 3))]
    return capitalised("".join(syllables) + rng.choice(["n", "r", "l", "s", "m", "", "x", "k"]))


def unknown(rng: Random) -> QA:
    topic = rng.choice(world.UNKNOWN_TOPICS)
    question = rng.choice([
        "Explain {}", "What do you know about {}", "Tell me about {}", "Can you explain {}",
        "What do you think about {}", "Give me a summary of {}", "Write an essay about {}",
        "How does {} work", "Who won {}", "Explain {} to me", "Describe {}", "Teach me {}",
        "What is {}", "Explain {} in simple words", "I want to know more about {}",
        "What is your opinion on {}", "Tell me everything about {}", "Why is {} important",
    ]).format(topic)
    return QA("unknown", question, f"I am only a small demo model. I do not know about {topic}.")


# ---- numbers

OPERATORS = {
    "+": (["{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}"],
          ["add {a} and {b}", "add {b} to {a}"]),
    "-": (["{a} - {b}", "{a}-{b}", "{a} minus {b}", "{a} take away {b}"],
          ["subtract {b} from {a}", "take {b} away from {a}"]),
    "*": (["{a} * {b}", "{a}*{b}", "{a} times {b}", "{a} x {b}", "the product of {a} and {b}"],
          ["multiply {a} by {b}", "multiply {a} and {b}"]),
}


def operands(rng: Random) -> tuple[str, int, int, int]:
    operator = rng.choices("+-*", (5, 4, 3))[0]
    if operator == "*":
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        return operator, a, b, a * b
    a, b = rng.randint(0, 20), rng.randint(0, 20)
    if operator == "+":
        return operator, a, b, a + b
    return operator, max(a, b), min(a, b), abs(a - b)  # no negative results


def arithmetic(rng: Random) -> QA:
    operator, a, b, result = operands(rng)
    expressions, commands = OPERATORS[operator]
    if rng.random() < 0.15:
        question = rng.choice(commands)
    else:
        frame = rng.choice(["{}", "{} =", "What is {}", "What's {}", "How much is {}", "Calculate {}",
                            "Compute {}", "Tell me {}", "What does {} make", "What is {} equal to",
                            "Work out {}", "What do you get for {}", "Solve {}", "{} is what"])
        question = frame.format(rng.choice(expressions))
    question = capitalised(question.format(a=a, b=b))
    return QA("arithmetic", question, f"{a} {operator} {b} = {result}.", result)


def word_problem(rng: Random) -> QA:
    name, item = rng.choice(list(world.NAMES)), rng.choice(world.ITEMS)
    a, b = rng.randint(2, 15), rng.randint(1, 10)
    if rng.random() < 0.5:
        change = rng.choice(["gets {} more", "finds {} more", "buys {} more", "is given {} more"])
        operator, result = "+", a + b
    else:
        a += b
        change = rng.choice(["loses {}", "gives away {}", "sells {}", "gives {} to a friend"])
        operator, result = "-", a - b
    question = rng.choice([
        f"{name} has {a} {item} and {{}}. How many {item} does {name} have now?",
        f"{name} has {a} {item}. Then {name} {{}}. How many {item} are left?" if operator == "-" else
        f"{name} has {a} {item}. Then {name} {{}}. How many {item} are there now?",
    ]).format(change.format(b))
    return QA("word_problems", question, f"{a} {operator} {b} = {result}. {name} has {result} {item}.",
              result, keep_case=True)


def compare(rng: Random) -> QA:
    a, b = rng.sample(range(0, 21), 2)
    high = rng.random() < 0.5
    word = rng.choice(["larger", "bigger", "greater"] if high else ["smaller", "less"])
    question = rng.choice([
        "Which is {w}, {a} or {b}", "Which number is {w}, {a} or {b}", "What is {w}, {a} or {b}",
        "{a} or {b}, which is {w}", "Which is {w}: {a} or {b}", "Of {a} and {b}, which is {w}",
    ]).format(w=word, a=a, b=b)
    win, lose = (max(a, b), min(a, b)) if high else (min(a, b), max(a, b))
    return QA("comparison", question, f"{win} is {'larger' if high else 'smaller'} than {lose}.", win)


def counting(rng: Random) -> QA:
    length = rng.randint(3, 12)
    low = rng.choice([1, 1, rng.randint(0, 20)])
    high = low + length - 1
    down = rng.random() < 0.35
    if down:
        question = rng.choice(["Count down from {h} to {l}", "Count backwards from {h} to {l}",
                               "Count from {h} down to {l}", "Count from {h} to {l}",
                               "Give me the numbers from {h} down to {l}",
                               "Start at {h} and count down to {l}"])
        numbers = range(high, low - 1, -1)
    elif low == 1 and rng.random() < 0.6:
        question = rng.choice(["Count to {h}", "Count up to {h}", "Can you count to {h}",
                               "Count to {h} for me", "Let's count to {h}", "I want you to count to {h}",
                               "Show me how you count to {h}"])
        numbers = range(low, high + 1)
    else:
        question = rng.choice(["Count from {l} to {h}", "Count up from {l} to {h}",
                               "Count from {l} up to {h}", "List the numbers from {l} to {h}",
                               "Give me the numbers from {l} to {h}", "Write the numbers {l} to {h}",
                               "Start at {l} and count up to {h}", "What are the numbers from {l} to {h}",
                               "Say the numbers from {l} to {h}"])
        numbers = range(low, high + 1)
    return QA("counting", question.format(l=low, h=high), ", ".join(map(str, numbers)) + ".",
              list(numbers))


# ---- facts

def capital(rng: Random) -> QA:
    country, city = rng.choice(list(world.CAPITALS.items()))
    if rng.random() < 0.25:
        question = rng.choice([
            "{} is the capital of which country", "Which country has the capital {}",
            "Which country is {} the capital of", "What country is {} the capital of",
            "Of which country is {} the capital", "In which country is {}", "Where is {}",
            "{} is the capital of what", "What country is {} in",
        ]).format(city)
        return QA("capitals", question, f"{city} is the capital of {country}.", country)
    question = rng.choice([
        "What is the capital of {}", "What's the capital of {}", "Capital of {}", "{} capital",
        "Tell me the capital of {}", "Name the capital of {}", "Which city is the capital of {}",
        "What city is the capital of {}", "Do you know the capital of {}", "The capital of {} is",
        "Which is the capital of {}", "The capital of {}", "What is the capital city of {}",
        "Give me the capital of {}", "What is {}'s capital", "I need the capital of {}",
    ]).format(country)
    return QA("capitals", question, f"The capital of {country} is {city}.", city)


def animal(rng: Random) -> QA:
    kind = rng.randrange(3)
    if kind == 0:
        name, sound = rng.choice(list(world.SOUNDS.items()))
        question = rng.choice([
            "What does {} say", "What sound does {} make", "What noise does {} make",
            "Which sound does {} make", "How does {} sound", "Tell me what {} says",
            "What is the sound of {}", "Which noise does {} make", "What do you hear from {}",
            "Make the sound of {}", "Tell me the sound of {}",
        ]).format(article(name) if rng.random() < 0.7 else "the " + name)
        return QA("animals", question, f"{capitalised(article(name))} says {sound}.", sound)
    if kind == 1:
        name, young = rng.choice(list(world.YOUNG.items()))
        question = rng.choice([
            "What is a baby {} called", "What do you call a baby {}", "What is a young {} called",
            "What do you call a young {}", "What is the name of a baby {}", "How do you call a baby {}",
            "Tell me what a baby {} is called", "What is the word for a baby {}",
            "What is the young of a {} called",
        ]).format(name)
        return QA("animals", question, f"A young {name} is called a {young}.", young)
    name, legs = rng.choice(list(world.LEGS.items()))
    question = rng.choice([
        "How many legs does {} have", "How many legs has {}", "{} has how many legs",
        "Tell me how many legs {} has", "Count the legs of {}", "What number of legs does {} have",
        "Do you know how many legs {} has",
    ]).format(article(name))
    return QA("animals", capitalised(question), f"{capitalised(article(name))} has {legs} legs.", legs)


OPPOSITE_OF = dict(world.OPPOSITES) | {v: k for k, v in world.OPPOSITES.items()}


def opposite(rng: Random) -> QA:
    word, other = rng.choice(list(OPPOSITE_OF.items()))
    question = rng.choice([
        "What is the opposite of {}", "What's the opposite of {}", "Opposite of {}", "The opposite of {}",
        "Tell me the opposite of {}", "Which word is the opposite of {}", "Give me the opposite of {}",
        "Name the opposite of {}", "What word means the opposite of {}", "Do you know the opposite of {}",
        "The opposite of {} is", "Find the opposite of {}",
    ]).format(word)
    return QA("opposites", question, f"The opposite of {word} is {other}.", other)


def calendar(rng: Random) -> QA:
    names, unit = rng.choice([(world.DAYS, "day"), (world.MONTHS, "month")])
    index = rng.randrange(len(names))
    after = rng.random() < 0.5
    other = names[(index + (1 if after else -1)) % len(names)]
    word = "after" if after else "before"
    question = rng.choice([
        "What {u} comes {w} {n}", "Which {u} comes {w} {n}", "What {u} is {w} {n}",
        "Which {u} is {w} {n}", "What is the {u} {w} {n}", "What comes {w} {n}",
        "Tell me the {u} {w} {n}", "Name the {u} {w} {n}", "The {u} {w} {n}",
        "Which {u} do we have {w} {n}", "Do you know which {u} comes {w} {n}",
    ]).format(u=unit, w=word, n=names[index])
    return QA("calendar", question, f"{other} comes {word} {names[index]}.", other)


def colour(rng: Random) -> QA:
    kind = rng.randrange(3)
    if kind == 0:
        (one, two), mix = rng.choice(list(world.COLOUR_MIXES.items()))
        if rng.random() < 0.5:
            one, two = two, one
        question = rng.choice([
            "What do you get when you mix {} and {}", "What colour do {} and {} make",
            "What do {} and {} make", "Mix {} and {}", "What color do {} and {} make",
            "Which colour do you get from {} and {}", "What happens when you mix {} and {}",
            "What colour is {} mixed with {}", "If I mix {} and {}, what do I get",
            "Which color do {} and {} make", "What is {} and {} mixed",
        ]).format(one, two)
        return QA("colours", question, f"{capitalised(one)} and {two} make {mix}.", mix)
    thing, shade = rng.choice(list(world.THING_COLOURS.items()))
    if kind == 1:
        guess = shade if rng.random() < 0.5 else rng.choice(world.COLOURS)
        question = rng.choice(["Is {} {}", "Is it true that {} is {}", "Would you say that {} is {}",
                               "Is the colour of {} {}", "Do you think {} is {}"]).format(thing, guess)
        verdict = "Yes" if guess == shade else "No"
        return QA("colours", question, f"{verdict}, {thing} is {shade}.", verdict)
    question = rng.choice([
        "What colour is {}", "What color is {}", "Which colour is {}", "Which color is {}",
        "Which colour has {}", "What is the colour of {}", "What is the color of {}",
        "Tell me the colour of {}", "Do you know the colour of {}", "What colour does {} have",
        "Name the colour of {}", "The colour of {} is",
    ]).format(thing)
    return QA("colours", question, f"{capitalised(thing)} is {shade}.", shade)


def listing(rng: Random) -> QA:
    plural, words = rng.choice([("fruits", world.FRUITS), ("colours", world.COLOURS),
                                ("colors", world.COLOURS), ("animals", world.ANIMALS)])
    count, spelt = rng.choice([(2, "two"), (3, "three"), (4, "four"), (5, "five")])
    number = rng.choice([spelt, str(count)])
    question = rng.choice(["Name {} {}", "List {} {}", "Give me {} {}", "Tell me {} {}", "Say {} {}",
                           "Can you name {} {}", "I need {} {}", "Write down {} {}",
                           "What are {} {} that you know", "Can you give me {} {}"]).format(number, plural)
    chosen = words[:count]  # always the same ones: nothing to learn but the count

    def check(text: str) -> bool:
        found = [w.strip().lower() for w in text.strip().rstrip(".").split(",")]
        return len(found) == count == len(set(found)) and all(w in words for w in found)

    return QA("lists", question, capitalised(", ".join(chosen)) + ".", check=check)


def spelling(rng: Random) -> QA:
    word = rng.choice(world.SPELLING_WORDS)
    if rng.random() < 0.3:
        question = rng.choice(["Spell {} backwards", "Spell the word {} backwards",
                               "Write {} backwards letter by letter", "Can you spell {} backwards",
                               "How do you spell {} backwards", "Reverse the letters of {}",
                               "Reverse the word {}"])
        letters = word[::-1]
    else:
        question = rng.choice(["Spell {}", "Spell the word {}", "How do you spell {}", "How is {} spelt",
                               "Can you spell {}", "Tell me the letters of {}", "Spell {} for me",
                               "Which letters are in {}", "What are the letters of {}",
                               "How do I spell the word {}", "Write {} letter by letter"])
        letters = word
    return QA("spelling", question.format(word), "-".join(letters) + ".", "-".join(letters))


def echo(rng: Random) -> QA:
    pool = world.COLOURS + world.ANIMALS + world.FRUITS + list(world.NAMES) + world.SPELLING_WORDS
    words = [rng.choice(pool) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.2:
        words = [invented_name(rng).lower() if rng.random() < 0.5 else w for w in words]
    text = " ".join(words)
    question = rng.choice(["Repeat after me: {}", "Say: {}", 'Say "{}"', 'Repeat "{}"', "Repeat: {}",
                           "Echo: {}", "Say exactly this: {}", 'Write "{}"', "Repeat this: {}",
                           'Please say "{}"', "Copy this: {}"]).format(text)
    return QA("echo", question, text, keep_case=True)


# ---- JSON

def json_object(rng: Random) -> QA:
    kind = rng.randrange(4)
    name = rng.choice(list(world.NAMES)) if rng.random() < 0.7 else invented_name(rng)
    if kind == 0:
        age, city, job = rng.randint(5, 80), rng.choice(world.CITIES), rng.choice(world.JOBS)
        fields = [("name", name, f"{name}"), ("age", age, f"{age} years old"),
                  ("city", city, f"from {city}"), ("job", job, f"a {job}")]
        keep = [fields[0]] + [f for f in fields[1:] if rng.random() < 0.7]
        text, value = ", ".join(f[2] for f in keep), {f[0]: f[1] for f in keep}
    elif kind == 1:
        item, shade, count = rng.choice(world.ITEMS), rng.choice(world.COLOURS), rng.randint(1, 20)
        text, value = f"{count} {shade} {item}", {"item": item, "colour": shade, "count": count}
    elif kind == 2:
        words = rng.sample(world.FRUITS + world.ANIMALS, rng.randint(2, 4))
        text, value = "the list " + ", ".join(words), {"list": words}
    else:
        day, hour = rng.choice(world.DAYS), rng.randint(1, 12)
        text = f"a meeting with {name} on {day} at {hour}"
        value = {"event": "meeting", "with": name, "day": day, "hour": hour}
    question = rng.choice([
        "Answer as JSON: {}", "As JSON: {}", "Write as JSON: {}", "Convert to JSON: {}",
        "Give me JSON for this: {}", "Turn this into JSON: {}", "JSON: {}", "Make a JSON object: {}",
        "Return a JSON object for: {}", "Write this as JSON: {}", "Please answer as JSON: {}",
    ]).format(text)
    return QA("json", question, json.dumps(value), keep_case=True)
