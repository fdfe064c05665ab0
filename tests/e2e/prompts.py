"""The prompts of the equality matrix: short, long, unicode, code, chats."""

from collections.abc import Mapping, Sequence

_EVIDENCE = (
    "The harbour of the small town was built in three stages. The first pier was made of oak and stood for a hundred "
    "years; the second was made of granite from the quarry behind the hill; the third, of concrete, was finished in "
    "the year in which the railway closed. Fishermen say that the oldest part is still the safest in a storm. "
)

TEXTS: Sequence[str] = (
    "The capital of France is",
    "Once upon a time",
    "1, 1, 2, 3, 5, 8, 13,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "Ein kurzer Satz auf Deutsch: Der Hund",
    "Привет, как",
    "今日はいい天気ですね。",
    "Emoji test 🙂🙃 and then",
    "In 1969 and 2024, the numbers 12 345 and 0.001",
    '{"name": "Octavo", "year":',
    "a",
    _EVIDENCE,
    _EVIDENCE * 3 + "In short,",
    _EVIDENCE * 8 + "The second pier was made of",
    "word " * 200,
)

CHATS: Sequence[Sequence[Mapping[str, str]]] = (
    ({"role": "user", "content": "What is the capital of France?"},),
    (
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ),
    (
        {"role": "user", "content": "Name a prime number."},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "Another one, larger than 20?"},
    ),
    ({"role": "user", "content": "Übersetze ins Englische: „Grüße aus Köln, schöne Straße!“"},),
)

QUICK = 4  # how many of each kind of stack's prompts the quick suite takes


def all_prompts() -> list[str | Sequence[Mapping[str, str]]]:
    """Texts, then chats: 20."""
    return [*TEXTS, *CHATS]


def quick_prompts() -> list[str | Sequence[Mapping[str, str]]]:
    """One short, one unicode, one long, one chat."""
    return [TEXTS[0], TEXTS[8], TEXTS[13], CHATS[1]]
