"""Short stories, poems and plain paragraphs of the closed world, drawn from small grammars."""

from dataclasses import dataclass
from random import Random

import questions
import world

OPENINGS = ["Once upon a time, there was a {adj} {animal} named {name}. {name} lived {place}.",
            "Once upon a time, a {adj} {animal} named {name} lived {place}.",
            "There once was a {adj} {animal} named {name} who lived {place}."]
ENDING = "The end."


@dataclass
class Hero:
    name: str
    animal: str
    pronoun: str  # "he" or "she"

    @property
    def possessive(self) -> str:
        return {"he": "his", "she": "her"}[self.pronoun]

    @property
    def object(self) -> str:
        return {"he": "him", "she": "her"}[self.pronoun]


def hero(rng: Random) -> Hero:
    name, pronoun = rng.choice(list(world.NAMES.items()))
    return Hero(name, rng.choice(world.STORY_ANIMALS), pronoun)


def story(rng: Random, who: Hero) -> str:
    """A hero loses a thing, looks for it, finds it with a friend's help. Six to nine sentences."""
    friend = rng.choice([a for a in world.STORY_ANIMALS if a != who.animal])
    thing, hideout = rng.choice(world.STORY_OBJECTS), rng.choice(world.STORY_HIDEOUTS)
    day = rng.choice(world.DAYS)
    words = dict(adj=rng.choice(world.STORY_ADJECTIVES), animal=who.animal, name=who.name,
                 place=rng.choice(world.STORY_PLACES), thing=thing, friend=friend, hideout=hideout,
                 he=who.pronoun, He=who.pronoun.capitalize(), his=who.possessive, him=who.object,
                 day=day, afriend=questions.article(friend))
    lines = [
        rng.choice(OPENINGS),
        rng.choice(["{name} had a {thing} and loved it very much.",
                    "{He} had a {thing} that {he} loved very much."]),
        rng.choice(["One day, the {thing} was gone.", "One {day}, {name} could not find the {thing}."]),
        rng.choice(["{name} was sad and looked everywhere.",
                    "{He} looked in the house and in the garden, but it was not there."]),
        rng.choice(["Then {he} met {afriend}.", "On the way, {he} met {afriend}."]),
        rng.choice(['"I will help you," said the {friend}.',
                    '"Let us look for it together," said the {friend}.']),
        rng.choice(["They found the {thing} {hideout}.",
                    "Together they looked {hideout}, and there was the {thing}."]),
        rng.choice(["{name} was very happy and thanked the {friend}.",
                    '"Thank you!" said {name}, and gave the {friend} a hug.']),
        rng.choice(["From that day on, they were good friends.",
                    "They played together until the sun went down."]),
    ]
    return " ".join(lines).format(**words) + " " + ENDING


def is_story(text: str, who: Hero) -> bool:
    """A whole story about `who`: right hero, one pronoun only, no sentence twice, an end."""
    sentences = [s.strip() for s in text.replace("!", ".").split(".") if s.strip()]
    other = {"he": (" she ", " her "), "she": (" he ", " his ", " him ")}[who.pronoun]
    return (text.endswith(ENDING) and who.name in text and f" {who.animal} " in text + " "
            and len(sentences) >= 7 and len(set(sentences)) == len(sentences)
            and not any(word in text.lower() for word in other)
            and sum(name in text.replace(",", " ").replace(".", " ").split()
                    for name in world.NAMES) == 1)


def asked_story(rng: Random) -> questions.QA:
    who = hero(rng)
    kind = questions.article(who.animal)
    question = rng.choice([
        "Tell me a story about {k} named {n}", "Tell me a short story about {k} named {n}",
        "Write a story about {k} named {n}", "Tell a story about {k} called {n}",
        "Write a short story about {k} called {n}", "I want a story about {k} named {n}",
        "Can you tell me a story about {k} named {n}", "Please write a bedtime story about {k} named {n}",
        "Tell me a bedtime story about {k} called {n}", "A story about {k} named {n}",
    ]).format(k=kind, n=who.name)
    return questions.QA("stories", question, story(rng, who), check=lambda t: is_story(t, who),
                        keep_case=True)


def free_story(rng: Random) -> questions.QA:
    """A story whose hero the model may choose, wholly or in part."""
    who = hero(rng)
    if rng.random() < 0.6:
        kind = questions.article(who.animal)
        question = rng.choice([
            "Tell me a story about {}", "Write a story about {}", "Write a short story about {}",
            "Tell me a bedtime story about {}", "Write a one-sentence bedtime story about {}",
            "Tell me a three sentence bedtime story about {}", "I want a story about {}",
            "Can you tell me a story about {}"]).format(kind)

        def check(text: str) -> bool:
            return any(is_story(text, Hero(n, who.animal, p)) for n, p in world.NAMES.items())
    else:
        question = rng.choice(["Tell me a story", "Tell me a short story", "Write a story",
                               "Write a short story", "I want to hear a story", "Can you tell me a story",
                               "Tell me a bedtime story", "Make up a story", "A story, please",
                               "Another story", "Tell me another story", "Tell me a fairy tale"])

        def check(text: str) -> bool:
            return any(is_story(text, Hero(n, a, p)) for n, p in world.NAMES.items()
                       for a in world.STORY_ANIMALS)
    return questions.QA("stories", question, story(rng, who), check=check)


POEM_TOPICS = {
    "the sea": ("The sea is blue, the sea is wide,", "it comes and goes with every tide."),
    "the moon": ("The moon is up, the moon is bright,", "it keeps us company at night."),
    "the sun": ("The sun is up, the sun is gold,", "it warms the young, it warms the old."),
    "the rain": ("The rain comes down, the rain is grey,", "it sings and washes dust away."),
    "snow": ("The snow is white, the snow is deep,", "it covers fields that fall asleep."),
    "a cat": ("A cat is soft, a cat is sly,", "it watches every bird go by."),
    "a dog": ("A dog is glad, a dog is true,", "it waits all day to play with you."),
    "a tree": ("A tree is tall, a tree is green,", "it hides the birds that go unseen."),
    "a loom": ("A loom is old, a loom is strong,", "it hums its thread a weaving song."),
    "spring": ("The spring is here, the spring is mild,", "it makes a gardener of a child."),
}


def poem(rng: Random) -> questions.QA:
    topic, lines = rng.choice(list(POEM_TOPICS.items()))
    question = rng.choice([
        "Write a poem about {}", "Write a short poem about {}", "Give me a poem about {}",
        "Tell me a poem about {}", "Can you write a poem about {}", "A poem about {}",
        "I want a poem about {}", "Make a rhyme about {}", "Write two lines about {}",
        "Write me a poem about {}", "Do you know a poem about {}", "Write a rhyme about {}",
    ]).format(topic)
    return questions.QA("poems", question, "\n".join(lines))


def joke(rng: Random) -> questions.QA:
    question = rng.choice(["Tell me a joke", "Do you know a joke", "Make me laugh", "A joke, please",
                           "Tell a joke", "Another joke", "Say something funny", "Can you tell me a joke",
                           "Give me a joke", "I want to hear a joke", "Know any jokes",
                           "Please tell me a joke", "Tell me something funny", "Tell me another joke"])
    return questions.QA("poems", question, rng.choice(world.JOKES), check=lambda t: t in world.JOKES)


# ---- plain text, without chat markup: (prompt, continuation)

def plain_story(rng: Random) -> tuple[str, str, object]:
    """Cut anywhere after the sentence that names the hero, so that `who` is fixed by the prompt."""
    who = hero(rng)
    text = story(rng, who)
    sentences = text.split(". ")
    cut = rng.randint(2, 4)
    prompt = ". ".join(sentences[:cut]) + "."
    return prompt, text[len(prompt):], lambda rest: is_story(prompt + rest, who)


def plain_facts(rng: Random) -> tuple[str, str, object]:
    """A paragraph of facts; the last one is to be completed."""
    makers = [questions.capital, questions.opposite, questions.colour, questions.animal,
              questions.calendar, questions.arithmetic]
    maker = rng.choice(makers)
    facts = [maker(rng).answer for _ in range(rng.randint(1, 3))]
    last = facts[-1]
    cut = last.rindex(" ")
    facts[-1], rest = last[:cut], last[cut:]
    # A paragraph may go on with another fact: what is asked for is only the sentence begun.
    return " ".join(facts), rest, lambda text: text.startswith(rest)
