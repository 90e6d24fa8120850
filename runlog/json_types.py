"""The type of a JSON object, for what is read from JSON and what is to be written as JSON."""

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]  # as json.loads returns it; whoever reads a value from outside checks its type
