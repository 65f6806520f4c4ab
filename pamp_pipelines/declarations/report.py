"""Problems found by checks, in two weights."""

from dataclasses import dataclass, field

from pamp_pipelines.declarations.catalog import Catalog
from pamp_pipelines.declarations.yaml_loader import Loc
from pamp_pipelines.errors import DeclarationError, Problem


@dataclass
class Report:
    """``errors`` would make a run fail or mean something else than declared; ``warnings`` may be meant."""

    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def raise_errors(self) -> None:
        """Raises DeclarationError when there are errors."""
        if self.errors:
            raise DeclarationError(self.errors)


@dataclass(frozen=True)
class Subject:
    """One declaration under check; a field is given as it is written, ``optimizer.lr``."""

    catalog: Catalog
    report: Report
    kind: str
    name: str

    def error(self, field: str, message: str, *rest: str | int) -> None:
        """``rest`` continues the place below ``field``: list indices, and keys that may hold dots."""
        self.report.errors.append(self._problem(field, message, rest))

    def warn(self, field: str, message: str, *rest: str | int) -> None:
        self.report.warnings.append(self._problem(field, message, rest))

    def _problem(self, field: str, message: str, rest: Loc) -> Problem:
        return self.catalog.problem(self.kind, self.name, (*field.split("."), *rest), message)
