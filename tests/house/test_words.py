"""The word list of `make lint`: which texts are checked, and which are not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_words_are_found_in_pages_messages_and_docstrings(tmp_path: Path) -> None:
    """Goal: the check can fail. Method: a small checkout with the word in each kind of text."""
    spec = importlib.util.spec_from_file_location("words", ROOT / ".ci" / "words.py")
    assert spec is not None
    assert spec.loader is not None
    words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    texts = {
        "README.md": "Clear.\nNobody knows.\n",
        "CONTRIBUTING.md": "`nobody`\n\n```sh\nnobody\n```\n\nSee [this](nobody.md).\n",
        "docs/page.md": "It is refused.\n",
        "docs/design/0001-note.md": "Nobody.\n",
        "luwu/base/error_table.toml": 'meaning = "It was told."\n',
        "luwu/a.py": '"""Nobody, `nobody`."""\n\nTEXT = "made anew"\nNAME = "told"\n# nobody\n',
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [
        (str(Path(place).relative_to(tmp_path)), word) for place, word in words.places(tmp_path)
    ]
    assert found == [
        ("README.md:2", "Nobody"),
        ("docs/page.md:1", "is refused"),
        ("luwu/base/error_table.toml:1", "told"),
        ("luwu/a.py:1", "Nobody"),
        ("luwu/a.py:3", "anew"),
    ]
