"""JSON Schema in front of a grammar library: rewritten into the part that it gets exactly right."""

from octavo.text.grammars.schema.exact import exact_schema

__all__ = ["exact_schema"]
