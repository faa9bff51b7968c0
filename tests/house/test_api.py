"""docs/schema/api-VERSION.txt is what the program has, and the changelog names what changed."""

from __future__ import annotations

from pathlib import Path

from tests import api
from tests.helpers.schemas import SCHEMAS

BEFORE = {
    "luwu.A": "(x: int = 1)", "luwu.A.f": "()", "luwu.AB": "()", "luwu.D": "(x)", "luwu.D.h": "()",
    "luwu run --y": "N",
}  # fmt: skip
AFTER = {
    "luwu.AB": "()", "luwu.D": "(y)", "luwu.D.h": "(y)", "luwu run --y": "M",
    "luwu.C": "", "luwu.C.g": "()",
}  # fmt: skip


def test_the_file_and_the_changelog_have_what_the_program_has() -> None:
    changelog = api.CHANGELOG.read_text(encoding="utf-8")
    found = api.api()
    assert api.problems(SCHEMAS, api.PROJECT["version"], changelog, found) == []
    assert api.read(SCHEMAS / f"api-{api.PROJECT['version']}.txt") == found


def test_a_change_is_named(tmp_path: Path) -> None:
    """Goal: what went, came or changed since the last release, and is not in the section of this
    version, is found; one name stands for all below it only if it went or came itself."""

    def problems(changelog: str, found: dict[str, str] = AFTER) -> list[str]:
        return api.problems(tmp_path, "0.10.0", changelog, found)

    for version, entries in {"0.1.0": {}, "0.9.0": BEFORE, "0.10.0": AFTER, "0.11.0": {}}.items():
        (tmp_path / f"api-{version}.txt").write_text(api.as_text(entries))
    names = ["luwu.A", "luwu.A.f", "luwu.D", "luwu.D.h", "luwu run --y", "luwu.C", "luwu.C.g"]
    for empty in ("## 0.10.0\n", "## 0.10.0\n## 0.9.0\n" + " ".join(f"`{each}`" for each in names)):
        found = problems(empty)
        assert [each.partition(": name `")[2].partition("`")[0] for each in found] == names
    assert "luwu run --y - N + M: name" in found[4]
    few = "## 0.10.0 (some day)\n\n- `luwu.A` went,\n  `luwu\n  run --y`, `luwu.D` and `luwu.C`.\n"
    assert [each.partition(" ")[0] for each in problems(few)] == ["luwu.D.h"]
    assert problems(few + "`luwu.D.h`") == []
    assert problems("## 0.9.0\n")[0] == "docs/changelog.md has no section 0.10.0"
    stale = problems(few + "`luwu.D.h`", {**AFTER, "luwu.AB": "(z)"})
    assert stale[0] == "luwu.AB - () + (z): run python -m tests.api"
    assert "name `luwu.AB`" in stale[1]
