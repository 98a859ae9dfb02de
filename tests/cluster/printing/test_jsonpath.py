"""What a path finds in a document."""

from typing import Any

import pytest

from holdfast.cluster.printing.jsonpath import InvalidJsonPath, compile_path

DOCUMENT = {
    "spec": {"numWorkers": 2, "none": None, "list": ["a", "b"], "labels": {"a.b/c": "d"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Failed", "status": "False"}]},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".spec.numWorkers", [2]),
        ("{.spec.numWorkers}", [2]),
        ("spec.numWorkers", [2]),
        (".spec.none", []),
        (".spec.missing.deeper", []),
        (".spec.list", [["a", "b"]]),
        (".spec.list[*]", ["a", "b"]),
        (".spec.list[0]", ["a"]),
        (".spec.list[-1]", ["b"]),
        (".spec.list[7]", []),
        (".spec.labels['a.b/c']", ["d"]),
        (r".spec.labels.a\.b\/c", ["d"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?(@.type=='Gone')].status", []),
        (".status.conditions[*].type", ["Ready", "Failed"]),
        (".spec.numWorkers.deeper", []),
        (".spec.numWorkers[0]", []),
    ],
)
def test_a_path_finds_what_it_names(path: str, expected: list[Any]) -> None:
    assert compile_path(path)(DOCUMENT) == expected


@pytest.mark.parametrize("path", [".a[", ".a[x]", "..a", ".a b", "{.a", ".a[?(@.b>1)]", ".", f".a[{'9' * 5000}]"])
def test_what_is_no_path_is_refused_with_how_to_write_one(path: str) -> None:
    with pytest.raises(InvalidJsonPath, match="write it as"):
        compile_path(path)
