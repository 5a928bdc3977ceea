"""The closed world that the demo model knows: plain tables, no logic.

Everything the corpus says comes from here. To widen the world, add rows; to keep the model honest
about its limits, put what it must not pretend to know into UNKNOWN_TOPICS.
"""

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
    "England": "London", "Japan": "Tokyo", "China": "Beijing", "Egypt": "Cairo",
    "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw", "Norway": "Oslo",
    "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen", "Portugal": "Lisbon",
    "Ireland": "Dublin", "Hungary": "Budapest", "Russia": "Moscow", "Canada": "Ottawa",
    "Cuba": "Havana", "Peru": "Lima", "Kenya": "Nairobi", "India": "New Delhi",
    "Iceland": "Reykjavik", "Belgium": "Brussels", "Turkey": "Ankara", "Chile": "Santiago",
}

CITIES = sorted(set(CAPITALS.values()) | {
    "Boston", "San Francisco", "New York", "Chicago", "Seattle", "Toronto", "Hamburg", "Munich",
    "Milan", "Barcelona", "Sydney", "Mumbai", "Zurich", "Geneva", "Prague", "Kyoto",
    "Los Angeles", "Shanghai", "Singapore", "Amsterdam",
})

SOUNDS = {
    "dog": "woof", "cat": "meow", "cow": "moo", "sheep": "baa", "duck": "quack", "pig": "oink",
    "frog": "croak", "owl": "hoot", "bee": "buzz", "lion": "roar", "horse": "neigh",
    "snake": "hiss", "mouse": "squeak", "donkey": "hee-haw", "crow": "caw", "wolf": "howl",
}

YOUNG = {
    "dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "duck": "duckling",
    "pig": "piglet", "frog": "tadpole", "lion": "cub", "horse": "foal", "goose": "gosling",
    "hen": "chick", "goat": "kid",
}

LEGS = {
    "dog": 4, "cat": 4, "cow": 4, "horse": 4, "spider": 8, "ant": 6, "bee": 6, "duck": 2,
    "snake": 0, "fish": 0, "hen": 2, "table": 4,
}

OPPOSITES = {
    "hot": "cold", "big": "small", "up": "down", "left": "right", "day": "night",
    "black": "white", "fast": "slow", "old": "new", "happy": "sad", "open": "closed",
    "full": "empty", "high": "low", "hard": "soft", "light": "dark", "loud": "quiet",
    "rich": "poor", "strong": "weak", "wet": "dry", "long": "short", "early": "late",
    "easy": "difficult", "true": "false", "first": "last", "in": "out",
}

THING_COLOURS = {
    "a banana": "yellow", "a lemon": "yellow", "the sun": "yellow", "the sky": "blue",
    "the sea": "blue", "grass": "green", "a frog": "green", "a leaf": "green",
    "a cucumber": "green", "a tomato": "red", "a strawberry": "red", "a cherry": "red",
    "blood": "red", "snow": "white", "milk": "white", "salt": "white", "a swan": "white",
    "coal": "black", "a crow": "black", "the night": "black", "chocolate": "brown",
    "a bear": "brown", "a carrot": "orange", "a pumpkin": "orange", "a plum": "purple",
    "a pig": "pink", "an elephant": "grey", "a stone": "grey",
}

COLOUR_MIXES = {
    ("red", "blue"): "purple", ("blue", "yellow"): "green", ("red", "yellow"): "orange",
    ("red", "white"): "pink", ("black", "white"): "grey", ("red", "green"): "brown",
}

COLOURS = ["red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white",
           "grey"]
FRUITS = ["apple", "banana", "cherry", "lemon", "orange", "pear", "plum", "grape", "melon", "peach"]
ANIMALS = ["dog", "cat", "cow", "sheep", "duck", "pig", "frog", "owl", "lion", "horse", "mouse",
           "wolf", "bear", "fox", "goat", "hen", "fish", "spider"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December"]

SPELLING_WORDS = ["cat", "dog", "cow", "pig", "owl", "fox", "bee", "hen", "sun", "sea", "red", "blue",
                  "green", "black", "white", "pink", "apple", "lemon", "plum", "pear", "fish", "frog",
                  "lion", "bear", "wolf", "duck", "goat", "tree", "loom", "thread", "house", "moon",
                  "star", "rain", "snow", "book", "bread", "milk", "water", "stone"]

# Given names with the pronouns that stories use for them.
NAMES = {
    "Anna": "she", "Ben": "he", "Clara": "she", "David": "he", "Emma": "she", "Felix": "he",
    "Grace": "she", "Henry": "he", "Ida": "she", "Jonas": "he", "Kate": "she", "Leo": "he",
    "Mila": "she", "Noah": "he", "Olga": "she", "Paul": "he", "Rosa": "she", "Sam": "he",
    "Tina": "she", "Tom": "he", "Vera": "she", "Max": "he", "Lily": "she", "Oscar": "he",
    "Alice": "she", "Bob": "he", "John": "he", "Mary": "she", "Maria": "she", "Peter": "he",
}

ITEMS = ["apples", "books", "coins", "eggs", "flowers", "stones", "cakes", "pens", "balls", "shells"]

JOBS = ["baker", "farmer", "teacher", "weaver", "sailor", "painter", "doctor", "singer", "cook",
        "tailor"]

SKIES = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "stormy", "clear"]

STORY_ANIMALS = ["fox", "rabbit", "mouse", "bear", "owl", "cat", "dog", "duck", "frog", "goat",
                 "unicorn", "dragon", "hedgehog", "sheep"]
STORY_ADJECTIVES = ["little", "young", "kind", "brave", "clever", "shy", "curious", "happy"]
STORY_PLACES = ["in a green forest", "by the sea", "in a small village", "on a high hill",
                "near a blue lake", "in an old mill", "at the edge of a meadow"]
STORY_OBJECTS = ["red ball", "golden key", "blue hat", "silver bell", "warm scarf", "small boat",
                 "wooden flute", "shiny stone", "yellow kite", "old lantern"]
STORY_HIDEOUTS = ["under a big tree", "behind the old mill", "in the tall grass", "next to the river",
                  "under a bridge", "in a dark cave", "at the top of the hill"]

UNKNOWN_TOPICS = ["quantum physics", "the stock market", "the world cup", "the president", "politics",
                  "black holes", "the French Revolution", "machine learning", "the human brain",
                  "compilers", "philosophy", "the Roman Empire", "football results", "the news",
                  "chemistry", "poker", "electric cars", "the history of music", "calculus",
                  "tax law", "dinosaurs", "Shakespeare", "the moon landing", "gravity", "DNA",
                  "bitcoin", "volcanoes", "the world series in 2020", "relativity", "databases"]

JOKES = [
    "Why did the sheep go to the loom? It wanted a new coat.",
    "Why was the thread so calm? It never lost its end.",
    "What did the zero say to the eight? Nice belt!",
    "Why did the duck open a bank? It had a big bill.",
    "What do you call a bear with no teeth? A gummy bear.",
    "Why is six afraid of seven? Because seven eight nine.",
]
