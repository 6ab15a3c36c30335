"""Call `harness.migrate` in several processes at the same moment; print what each of them applied, as JSON."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from harness import migrate


def main(url: str, processes: int) -> None:
    """Fork, hold every child at the start, let all go at once, and print one list or error per process."""
    for module in ("harness.streams", "psycopg"):
        import_module(module)  # before the fork, so that all begin together
    start, go = os.pipe()
    answers, answer = os.pipe()
    for _ in range(processes):
        if os.fork() == 0:
            os.close(go)
            os.read(start, 1)
            try:
                said: object = migrate(url)
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is the answer
                said = repr(error)
            os.write(answer, (json.dumps(said) + "\n").encode())
            os._exit(0)
    os.close(answer)
    os.close(go)
    for _ in range(processes):
        os.wait()
    with os.fdopen(answers) as stream:
        print(json.dumps([json.loads(line) for line in stream]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
