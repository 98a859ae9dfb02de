"""The golden files: all objects that the examples get, as a person has read them.

`python -m tests.trainingjob.objects.golden` writes them anew; read the difference before you keep it.
"""

from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import structs

from holdfast.api.manifests import documents
from holdfast.api.schema.validation import validate_object
from holdfast.api.trainingjob import TrainingJob
from tests.trainingjob.objects.family import children
from tests.trainingjobs import UID

FIXTURES = Path(__file__).parents[2] / "fixtures"
EXAMPLES = ("trainingjob-basic", "trainingjob-distributed", "trainingjob-resume", "trainingjob-advanced")
NAMESPACE = "ml-training"


def example(name: str) -> TrainingJob:
    """The manifest as the API server would store it, applied in the namespace of the examples."""
    (document,) = documents((FIXTURES / f"manifests/{name}.yaml").read_text())
    job = msgspec.convert(validate_object(document), TrainingJob)
    return structs.replace(job, metadata=structs.replace(job.metadata, namespace=NAMESPACE, uid=UID))


def golden(name: str) -> Path:
    return FIXTURES / f"golden/{name}.yaml"


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Texts of several lines as they are, so that they can be read."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _block)


def written(objects: list[dict[str, Any]]) -> str:
    text: str = yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)
    return text


if __name__ == "__main__":
    for each in EXAMPLES:
        golden(each).write_text(written(children(example(each))))
