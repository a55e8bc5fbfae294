"""What every mapping of the file has in common. The sections themselves: schema.py, and schema_*.py beside it."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)
