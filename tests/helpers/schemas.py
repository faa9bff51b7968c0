"""The published JSON Schemas (docs/schema), and whether a document is what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

SCHEMAS: Final = Path(__file__).parents[2] / "docs" / "schema"


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """All of them by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(SCHEMAS.glob("*.json"))}


def parts(schema: Any, path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all schemas in it."""
    if isinstance(schema, dict):
        yield path, schema
        for key, each in schema.get("properties", {}).items():
            yield from parts(each, f"{path}.{key}")
        for key in ("items", "additionalProperties", "then", "else"):
            yield from parts(schema.get(key), f"{path}[{key}]")


def check(name: str, document: object) -> None:
    """Fail where a document, as JSON carries it, is not what its schema says."""
    known = [(f"{each}.json", Resource.from_contents(found)) for each, found in schemas().items()]
    registry = Registry[Any]().with_resources(known)
    validator = Draft202012Validator(schemas()[name], registry=registry)
    carried = json.loads(json.dumps(document, allow_nan=False))
    wrong = [f"{each.json_path}: {each.message[:300]}" for each in validator.iter_errors(carried)]
    assert not wrong, f"docs/schema/{name}.json: " + "\n".join(wrong)
