"""Common base of all declarations."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]*$"
"""Names become partition keys, directory names and URL parts; commas, bars and slashes break each of these."""

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=100)]


class Declaration(BaseModel):
    """Immutable, and no unknown field goes unnoticed. Attribute docstrings become the JSON schema's descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
