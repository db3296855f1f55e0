"""Texts to ask about, of a wanted length: true sentences on queues and computing. Pure.

Lengths are in tokens as SmolLM2 counts this text: a word or a punctuation mark is about one. They
are near, not exact; whoever needs the count reads it from the outcome.
"""

import random
import re

QUESTIONS = (
    "What does a scheduler do?",
    "Why do queues grow?",
    "What is a cache for?",
    "Explain what a deadline is for.",
    "Why does a batch finish sooner than its parts one by one?",
    "Describe in two sentences how a queue keeps its order.",
    "What should happen to a request whose machine has stopped?",
    "Say in plain words why a log is easier to trust than a table that is changed in place.",
    "How would you share one machine fairly between three teams with different needs?",
    "List three reasons for a request to wait, and say which of them more memory would cure.",
)
# Each is true of any system of the kind, so that a question on it has an answer.
STATEMENTS = (
    "A queue grows when work arrives faster than it leaves.",
    "The average number of waiting items is the arrival rate times the average wait.",
    "A batch reads every weight once for all of its members.",
    "Short jobs that run first lower the average wait, but long jobs may then starve.",
    "A deadline that has passed makes the work worthless, so it is better not to begin it.",
    "Memory is reserved before a job starts, or it may run out in the middle.",
    "A cache helps when the same thing is read again soon.",
    "An append to a log never changes what was written before.",
    "Two copies of a record let one machine fail without loss.",
    "A retry is safe when doing the work twice has the same effect as doing it once.",
    "A clock that is set back must not change the order of events.",
    "Fairness means that no tenant waits because another one sends more.",
    "When the load is near the capacity, a little more load makes the wait much longer.",
    "A burst of requests is harder to serve than the same number spread over time.",
    "The first token needs the whole prompt to be read, the next ones need only one step each.",
    "An index that is kept in order finds the next item without a search.",
    "A fact says what happened, and a decision says what follows from it.",
    "Work that is cancelled should give its memory back at once.",
)
ASKING = "Use only what follows."
# A question is drawn from so many, the longest that fit.
CHOICES = 4
BYTES_PER_TOKEN = 4
_PIECES = re.compile(r"\w+|[^\w\s]")


def about_tokens(text: str) -> int:
    """Return about how many tokens `text` has: its words and punctuation marks."""
    return len(_PIECES.findall(text))


def question(tokens: int, chance: random.Random) -> str:
    """Return a question of about `tokens` tokens; a long one comes with statements to work from.

    The shortest question has five tokens, whatever is asked for.
    """
    by_length = sorted(QUESTIONS, key=about_tokens)
    fitting = [text for text in by_length if about_tokens(text) <= tokens]
    parts = [chance.choice(fitting[-CHOICES:] or by_length[:1])]
    left = tokens - about_tokens(parts[0])
    if left > about_tokens(ASKING) + about_tokens(STATEMENTS[0]):
        parts.append(ASKING)
        left -= about_tokens(ASKING)
        while left > 0:
            deck = list(STATEMENTS)
            chance.shuffle(deck)
            for text in deck:
                if left <= 0:
                    break
                parts.append(text)
                left -= about_tokens(text)
    return " ".join(parts)


def exactly(tokens: int, chance: random.Random) -> str:
    """Return ASCII text of exactly `tokens` × 4 bytes: for profiles that count bytes."""
    size = tokens * BYTES_PER_TOKEN
    text = " ".join(STATEMENTS) + " "
    first = chance.randrange(len(text))
    return (text[first:] + text * (size // len(text) + 1))[:size]
