"""What requests may hold, as pydantic models: they check types, and become the OpenAPI document."""
