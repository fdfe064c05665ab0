"""An engine that is asked by lines and answers a token at a time; it leaves when a prompt begins with 0."""

import json
import sys


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["prompt"][0] == 0:
            break
        for left in reversed(range(asked["num_tokens"])):
            print(json.dumps({"id": asked["id"], "num_tokens": 1, "is_finished": left == 0}), flush=True)


if __name__ == "__main__":
    main()
