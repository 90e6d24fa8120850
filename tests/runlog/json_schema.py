"""A validator of the parts of JSON Schema that our schema uses, apart from the project's own code."""

from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}
KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "unit"),
    *("type", "const", "minimum", "properties", "required", "additionalProperties", "items", "anyOf", "oneOf"),
}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> list[str]:
    """What of `value` does not meet `schema`."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        return faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    for word, wanted in (("anyOf", range(1, 99)), ("oneOf", (1,))):
        if word in schema:
            met = sum(not faults(value, one, root, at) for one in schema[word])
            return [] if met in wanted else [f"{at}: {met} of {word} are met"]
    if "const" in schema:
        return [] if value == schema["const"] else [f"{at}: not {schema['const']}"]
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{at}: {value!r} is no {kind}"]
    found = [f"{at}: below {schema['minimum']}"] if "minimum" in schema and value < schema["minimum"] else []
    if isinstance(value, dict):
        found += [f"{at}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            found += [f"{at}: {name} is unknown"] if inner is False else faults(item, inner, root, f"{at}/{name}")
    if isinstance(value, list):
        found += [fault for item in value for fault in faults(item, schema.get("items", {}), root, f"{at}[]")]
    return found
