"""luwu/predict/data/errors.toml: how far off an answer may be, and what was ever compared.

python -m tests.error_bars            write it
python -m tests.error_bars --check    fail if it is not what the blind sets and the rows say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.blind.unseen import SHARE, factors, unseen
from benchmarks.calibration import published

FILE: Final = Path(__file__).resolve().parents[1] / "luwu" / "predict" / "data" / "errors.toml"
HEAD: Final = f"""\
# Factors within which {SHARE:.0%} of what was predicted unseen was of what was published, by kind,
# wider by what is new; and what the rows cover. Made by `python -m tests.error_bars`; do not edit.
"""


def covered(family: str) -> dict[str, Any]:
    """Devices or processors in a precision, and software, of the rows."""
    devices, names = set(), set()
    for group in published().values():
        for series in group["series"] if group["family"] == family else ():
            for row in series["rows"]:
                one = {**group, **series, **dict(zip(series.get("keys", ()), row, strict=False))}
                on = one.get("device", one.get("processor"))
                devices.add(f"{on} {one.get('precision', 'bf16')}")
                names |= {one["software"]} if "software" in one else set()
    return {"devices": sorted(devices), "software": sorted(names)}


def text() -> str:
    """The file."""
    found: dict[str, Any] = {
        "factor": {name: round(each, 3) for name, each in factors(unseen()).items() if name},
        "training": covered("training"), "serving": covered("inference"),
    }  # fmt: skip
    lines = [HEAD]
    for name, each in found.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in each.items()), ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write or check the file; the exit code."""
    if "--check" not in arguments:
        FILE.write_text(text(), encoding="utf-8")
    elif not FILE.exists() or FILE.read_text(encoding="utf-8") != text():
        print(f"{FILE.name} is not up to date: run python -m tests.error_bars", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
