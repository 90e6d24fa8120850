"""jsonschema without the grammar of IRIs, which no schema here has: to build it takes 2 s of each run's start."""

import sys

sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # to jsonschema it is not installed

from jsonschema import Draft202012Validator, ValidationError, validate  # noqa: E402

__all__ = ["Draft202012Validator", "ValidationError", "validate"]
