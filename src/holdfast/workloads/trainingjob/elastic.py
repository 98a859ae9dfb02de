"""Whether a job brings a launcher that takes workers in and out while it runs: torchrun with a range of nodes."""

import re

from holdfast.api.trainingjob import TrainingJobSpec

# As words of their own (--nnodes 1:4), as one (--nnodes=1:4), or inside a shell's command line.
_OPTION = re.compile(r"""(?:^|[\s"'])--nnodes(?:=|\s+)["']?([^\s"']*)""")
_RANGE = re.compile(r"(\d{1,9}):(\d{1,9})", re.ASCII)


def is_elastic(spec: TrainingJobSpec) -> bool:
    """A gang is as strong as its weakest worker; an elastic training goes on with those that are left."""
    return min_workers(spec) > 0


def min_workers(spec: TrainingJobSpec) -> int:
    """With so many an elastic training goes on; 0 for one that is not elastic."""
    nodes = _RANGE.fullmatch(_nodes(spec))
    return max(1, int(nodes[1])) if nodes is not None and int(nodes[1]) != int(nodes[2]) else 0


def _nodes(spec: TrainingJobSpec) -> str:
    """torchrun's number of nodes as the user wrote it: the last option counts, and the variable where there is none."""
    written = _OPTION.findall(" ".join((*spec.command, *spec.args)))
    if written:
        return str(written[-1])
    return next((variable.value or "" for variable in spec.env if variable.name == "PET_NNODES"), "")
