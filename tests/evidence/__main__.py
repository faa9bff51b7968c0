"""What must stay as it was: `python -m tests.evidence COMMAND`.

    digests     run a job every way, and compare the digests of its weights; --write: write them
    headers     write the golden headers anew: only where a difference is meant
    states      write the states anew, for the same reason

Exit code 1 if a digest differs.
"""

from __future__ import annotations

import argparse
import sys

from tests.evidence import digests, headers, states


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.evidence", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("command", choices=["digests", "headers", "states"])
    parser.add_argument("--write", action="store_true", help="digests: of today")
    options = parser.parse_args()
    if options.command == "headers":
        headers.write_headers()
        return 0
    if options.command == "states":
        states.write_all()
        return 0
    if options.write:
        digests.write_table()
    found = digests.differences()
    print("\n".join([*found, f"{len(found)} differences"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
