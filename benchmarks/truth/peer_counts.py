"""Count requests with LiteLLM, in the environment of the peers: JSON lines in, numbers out."""

from __future__ import annotations

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


def main() -> None:
    from litellm import token_counter

    for line in sys.stdin:
        body = json.loads(line)
        try:
            tokens = token_counter(
                model="gpt-4o", messages=body["messages"], tools=body.get("tools")
            )
        except Exception as error:  # it fails on some requests
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            tokens = None
        print(json.dumps(tokens), flush=True)


if __name__ == "__main__":
    main()
