"""Validates the part of JSON Schema that docs/maskc.schema.json uses."""

from __future__ import annotations

import re
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN = {
    "$ref",
    "additionalProperties",
    "anyOf",
    "description",
    "enum",
    "items",
    "maximum",
    "minimum",
    "pattern",
    "properties",
    "required",
    "type",
}


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":
        return False
    return isinstance(value, TYPES[name])


def violations(
    value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$"
) -> list[str]:
    """Returns the faults of `value`, one sentence each; the list is empty if it conforms."""
    assert set(schema) <= KNOWN, f"{at}: schema uses {set(schema) - KNOWN}"
    wrong: list[str] = []
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        wrong += violations(value, root["$defs"][name], root, at)
    if "anyOf" in schema and all(violations(value, each, root, at) for each in schema["anyOf"]):
        wrong.append(f"{at}: fits no alternative")
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_type(value, name) for name in names):
            return [*wrong, f"{at}: {value!r} is no {names}"]
    if "enum" in schema and value not in schema["enum"]:
        wrong.append(f"{at}: {value!r} is none of {schema['enum']}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        wrong.append(f"{at}: {value} is out of range")
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        wrong.append(f"{at}: {value!r} does not match")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        wrong += [f"{at}: no {name}" for name in schema.get("required", []) if name not in value]
        for name, member in value.items():
            if name in properties:
                wrong += violations(member, properties[name], root, f"{at}.{name}")
            elif schema.get("additionalProperties") is False:
                wrong.append(f"{at}: unknown member {name}")
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            wrong += violations(item, schema["items"], root, f"{at}[{i}]")
    return wrong
