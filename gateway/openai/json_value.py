"""JSON as Python has it: the type of an object that is sent, and what a message calls a value that came."""

Json = dict[str, object]


def named(value: object) -> str:
    """In words, and for short values with the value: "the number 3", "an array"."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string {value[:40]!r}"
        case list():
            return "an array"
        case _:
            return "an object"
