"""Common base of all declarations."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PositiveInt,
    StringConstraints,
    model_validator,
)

from pamp_pipelines.urls import credentials_problem

NAME_PATTERN = r"^[a-z0-9](\.?[a-z0-9_-])*$"
"""Names become partition keys, directory names and URL parts; commas, bars and slashes break each of these. Dots
stand alone and inside: Dagster reads ``...`` in a key as a range, and a corpus may make others: ``CORPUS.SUFFIX``."""

NAME_RULE = (
    "lower-case letters, digits, `.`, `_` and `-`; a letter or digit first, no dot at the end nor beside another"
)

MAX_NAME = 100

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=MAX_NAME)]

OWNER_PATTERN = r"^(team:.+|[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7})$"

Owner = Annotated[str, StringConstraints(pattern=OWNER_PATTERN)]
"""An e-mail address, or ``team:name``: what Dagster takes as the owner of an asset."""


def _whole_number(value: Any) -> Any:
    """``1e9`` is how people write a billion tokens; YAML reads it as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[PositiveInt, BeforeValidator(_whole_number, json_schema_input_type=int)]
"""A large number of things, also in exponent form."""


class Inconsistent(ValueError):
    """Fields that do not fit together: each a dotted field and what is wrong with it."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{field}: {message}" if field else message for field, message in problems))


def _without_credentials(text: str) -> str:
    if (problem := credentials_problem(text)) is not None:
        raise Inconsistent(("", problem))
    return text


Place = Annotated[str, AfterValidator(_without_credentials)]
"""A path or a URL; not one that lets somebody in, since declarations are stored with everything made of them."""


Check = Callable[[], Iterable[tuple[str, str]]]
"""Compares fields: yields a dotted field and what is wrong, for each problem."""


class Declaration(BaseModel):
    """Immutable, and no unknown field goes unnoticed. Attribute docstrings become the JSON schema's descriptions."""

    # inputs stay out of pydantic's own messages, which tracebacks show: they may hold what has to stay secret
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    def checks(self) -> Iterable[Check]:
        """What compares fields with one another, each check by itself: one that needs a field whose value was refused
        is left out (``validate``), and the others still say what they find."""
        return ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := [problem for check in self.checks() for problem in check()]:
            raise Inconsistent(*problems)
        return self
