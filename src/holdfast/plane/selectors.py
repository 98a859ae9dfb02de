"""Selectors over labels and nodes, as parts of objects have them."""

from collections.abc import Mapping

from msgspec import Struct


class Requirement(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
        return False

    def _compares(self, value: str | None) -> bool:
        """Only whole numbers compare; anything else matches nothing."""
        try:
            found, bound = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return found > bound if self.operator == "Gt" else found < bound


class LabelSelector(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """An empty one selects everything; where there is none, nothing is selected."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.match_labels or self.match_expressions)

    def holds(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            each.holds(labels) for each in self.match_expressions
        )


class NodeSelectorTerm(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()

    def holds(self, labels: Mapping[str, str], name: str) -> bool:
        """A term without any condition selects nothing."""
        if not (self.match_expressions or self.match_fields):
            return False
        fields = {"metadata.name": name}
        return all(each.holds(labels) for each in self.match_expressions) and all(
            each.holds(fields) for each in self.match_fields
        )


class NodeSelector(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()

    def holds(self, labels: Mapping[str, str], name: str) -> bool:
        return any(term.holds(labels, name) for term in self.node_selector_terms)
