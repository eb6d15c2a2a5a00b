"""Schemas of the parameters of tools: every dialect read as one JSON Schema, and arguments held to it."""

from evolvent.schemas.checking import LEGAL_NAME, check_tools, faults
from evolvent.schemas.reading import is_flat, json_schema, tool_of

__all__ = ["LEGAL_NAME", "check_tools", "faults", "is_flat", "json_schema", "tool_of"]
