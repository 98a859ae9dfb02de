"""Which marks on a machine a pod puts up with."""

from collections.abc import Iterable

from holdfast.api.placing import Taint, Toleration


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty key with Exists tolerates everything, an empty effect every effect."""
    if toleration.effect not in ("", taint.effect):
        return False
    if toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return bool(toleration.key) and toleration.value == taint.value
    return False


def find_toleration(tolerations: Iterable[Toleration], taint: Taint) -> Toleration | None:
    """The first toleration that covers the taint."""
    return next((each for each in tolerations if tolerates(each, taint)), None)
