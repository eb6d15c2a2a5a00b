"""Schemas of the parameters of tools: every dialect is read as JSON Schema, and arguments are checked against it."""

from evolvent.schemas.checking import LEGAL_NAME, check_tools, find_argument_faults
from evolvent.schemas.reading import is_flat, json_schema, parse_tool

__all__ = ["LEGAL_NAME", "check_tools", "find_argument_faults", "is_flat", "json_schema", "parse_tool"]
