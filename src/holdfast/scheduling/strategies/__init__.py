"""The strategies by name. Each module here defines a STRATEGY; its name goes into the API's list as well."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from holdfast.scheduling.strategy import Strategy


def load_strategies() -> dict[str, Strategy]:
    modules = (import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__))
    return {module.STRATEGY.name: module.STRATEGY for module in modules}


STRATEGIES: Mapping[str, Strategy] = load_strategies()
