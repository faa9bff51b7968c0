"""`python -m tests.evidence WHAT` writes anew what must stay as it was, where that is meant."""

from __future__ import annotations

import argparse

from tests.evidence import digests, headers, states

WRITE = {
    "digests": digests.write_table,
    "headers": headers.write_headers,
    "states": states.write_all,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.evidence", description=__doc__)
    parser.add_argument("what", choices=WRITE)
    WRITE[parser.parse_args().what]()
