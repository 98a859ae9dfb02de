"""$(NAME) in values, commands and arguments, by Kubernetes' rules."""

import re
from collections.abc import Mapping

# Leftmost first: $$ stands for one $, $(NAME) for a variable; any other $ is itself.
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with every known reference replaced; one that is not known stays as it is written."""

    def replacement(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return _REFERENCE.sub(replacement, text)
