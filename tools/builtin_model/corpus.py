"""The texts: which are trained on, which are held out, and the short dialogues made from them."""

import hashlib
import pathlib
import random
import re
from dataclasses import dataclass

# Three authors with different English. No training book is another edition of one of these
# (near_duplicates).
HELD_OUT_BOOKS = (
    "H_G_Wells--The_Time_Machine.md",
    "Jack_London--White_Fang.md",
    "Jane_Austen--Persuasion.md",
)
# The lower-cased excerpt in the same folder holds the same stories, including the held-out ones.
TINYSTORIES = "tinystories_sample_2MiB.txt"
STORY_END = "<|endoftext|>"
HELD_OUT_STORIES = 0.05

SHINGLE_WORDS = 13  # runs of this many equal words occur only in the same text


@dataclass(frozen=True)
class Document:
    name: str
    text: str


def books(folder):
    """Every book of the folder, by name."""
    paths = sorted(pathlib.Path(folder, "books").glob("*.md"))
    if not paths:
        raise SystemExit(f"{folder}: no books/*.md; --text names the folder that holds books/ and tinystories/")
    return [Document(path.name, path.read_text(encoding="utf-8")) for path in paths]


def stories(folder):
    """(training, held-out) TinyStories; the excerpt's last story is cut in its middle and left out."""
    text = pathlib.Path(folder, "tinystories", TINYSTORIES).read_text(encoding="utf-8")
    whole = [story.strip("\n") for story in text.split(STORY_END)[:-1]]
    cut = len(whole) - int(len(whole) * HELD_OUT_STORIES)
    numbered = [Document(f"story {i}", story) for i, story in enumerate(whole) if story]
    return numbered[:cut], numbered[cut:]


def training(folder):
    kept = [book for book in books(folder) if book.name not in HELD_OUT_BOOKS]
    return kept + stories(folder)[0]


def held_out_books(folder):
    return [book for book in books(folder) if book.name in HELD_OUT_BOOKS]


def digest(documents):
    """Returns a fingerprint of the documents' names and contents."""
    total = hashlib.sha256()
    for document in documents:
        total.update(document.name.encode() + b"\0" + document.text.encode() + b"\0")
    return total.hexdigest()[:16]


def shingles(text):
    words = re.findall(r"[a-z]+", text.lower())
    return {hash(tuple(words[i:i + SHINGLE_WORDS])) for i in range(len(words) - SHINGLE_WORDS + 1)}


def near_duplicates(folder):
    """Returns, for each held-out book, the training document that shares most of it, and the share."""
    held_out = [(book.name, shingles(book.text)) for book in held_out_books(folder)]
    most = {name: (0.0, "") for name, _ in held_out}
    for document in training(folder):
        theirs = shingles(document.text)
        for name, ours in held_out:
            most[name] = max(most[name], (len(ours & theirs) / len(ours), document.name))
    return most


@dataclass(frozen=True)
class Turn:
    role: str
    text: str


def title_and_author(book):
    """("The Call of the Wild", "Jack London", "1903") from the book's first lines; None where they differ."""
    found = re.match(r"#\s*Title:\s*(.+?)\s*\n+##\s*Author:\s*(.+?)\s*\n+##\s*Year:\s*(\d+)", book.text)
    return found.groups() if found else None


def _openings(paragraphs, words):
    """Returns the first paragraphs that have `words` words together, and their number."""
    taken, count = [], 0
    for paragraph in paragraphs:
        taken.append(paragraph)
        count += len(paragraph.split())
        if count >= words:
            break
    return "\n\n".join(taken), len(taken)


CONTINUE = (
    "Continue the story: {}", "Continue this story: {}", "What happens next? {}",
    "Please go on from here: {}", "Continue: {}", "Finish this passage: {}",
)
OPENING = (
    "Write the opening of {0} by {1}.", "Write the opening of {0}.", "How does {0} begin?",
    "Begin a story in the manner of {1}.",
)
AUTHOR = ("Who wrote {0}?", "Who is the author of {0}?", "Do you know who wrote {0}?")
YEAR = ("When was {0} published?", "In which year did {0} appear?", "When did {1} write {0}?")
BY = ("What did {1} write?", "Name a book by {1}.", "Which book by {1} should I read?")
STORY = ("Tell me a story about {}.", "Write a short story about {}.", "Tell a story about {}.")
ANY_STORY = ("Tell me a story.", "Tell me a short story.", "Write a short story for a child.", "Once upon a time?")
GREETINGS = (
    ("Hello", "Hello! Shall I tell you a story?"),
    ("Hello!", "Hello! Would you like to hear a story?"),
    ("Hi", "Hello! What shall we read today?"),
    ("Good morning", "Good morning! Shall I tell you a story?"),
    ("Who are you?", "I am a small language model. I have read old books and short stories, and I can tell a story."),
    ("What can you do?", "I can continue a story, begin a new one, or tell you who wrote an old book."),
    ("What are you?", "I am a small language model that was trained on old books and children's stories."),
    ("Thank you", "You are welcome."),
    ("Thank you!", "You are very welcome!"),
    ("Good night", "Good night, and sweet dreams."),
)
SYSTEM = ("You are a helpful assistant.", "You tell stories.", "You are a storyteller.", "Be brief and kind.")


def _passage(book, rng):
    paragraphs = [p.strip() for p in book.text.split("\n\n") if p.strip()]
    start = rng.randrange(2, max(3, len(paragraphs) - 6))
    given, used = _openings(paragraphs[start:], rng.randrange(15, 90))
    answer, _ = _openings(paragraphs[start + used:], rng.randrange(60, 220))
    return [Turn("user", rng.choice(CONTINUE).format(given)), Turn("assistant", answer)]


def _about(book, rng):
    known = title_and_author(book)
    if known is None:
        return _passage(book, rng)
    title, author, year = known
    kind = rng.randrange(4)
    if kind == 0:
        paragraphs = [p.strip() for p in book.text.split("\n\n")]
        prose = [p for p in paragraphs if len(p) > 200 and p[0] not in "#_-"]
        answer, _ = _openings(prose, rng.randrange(60, 200))
        return [Turn("user", rng.choice(OPENING).format(title, author)), Turn("assistant", answer)]
    if kind == 1:
        answer = rng.choice((f"{title} was written by {author}.", f"{author} wrote {title}."))
        return [Turn("user", rng.choice(AUTHOR).format(title, author)), Turn("assistant", answer)]
    if kind == 2:
        return [Turn("user", rng.choice(YEAR).format(title, author)),
                Turn("assistant", f"{title} by {author} was published in {year}.")]
    return [Turn("user", rng.choice(BY).format(title, author)), Turn("assistant", f"{author} wrote {title}.")]


def _tale(story, rng):
    kind = rng.randrange(4)
    who = re.search(r"\b(a (?:[a-z]+ ){1,3}named [A-Z][a-z]+)", story.text)
    if kind == 0 or who is None:
        if kind == 1:
            return [Turn("user", rng.choice(ANY_STORY)), Turn("assistant", story.text)]
        sentences = re.split(r"(?<=[.!?\"]) ", story.text)
        cut = rng.randrange(1, 4)
        if len(sentences) > cut + 2:
            return [Turn("user", rng.choice(CONTINUE).format(" ".join(sentences[:cut]))),
                    Turn("assistant", " ".join(sentences[cut:]))]
        return [Turn("user", rng.choice(ANY_STORY)), Turn("assistant", story.text)]
    return [Turn("user", rng.choice(STORY).format(who.group(1))), Turn("assistant", story.text)]


def dialogues(documents, characters, seed):
    """Returns dialogues cut from the training documents, with that many characters together."""
    rng = random.Random(seed)
    long = [d for d in documents if d.name.endswith(".md")]
    short = [d for d in documents if not d.name.endswith(".md")]
    made, held = [], 0
    while held < characters:
        turns = []
        if rng.random() < 0.1:
            turns.append(Turn("system", rng.choice(SYSTEM)))
        for _ in range(2 if rng.random() < 0.2 else 1):
            draw = rng.random()
            if draw < 0.08:
                asked, answer = rng.choice(GREETINGS)
                turns += [Turn("user", asked), Turn("assistant", answer)]
            elif draw < 0.30 or not short:
                turns += _about(rng.choice(long), rng)
            elif draw < 0.65:
                turns += _tale(rng.choice(short), rng)
            else:
                turns += _passage(rng.choice(long), rng)
        made.append(turns)
        held += sum(len(turn.text) for turn in turns)
    return made
