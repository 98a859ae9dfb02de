"""Writes the golden files anew."""

from tests.spotinstancejob.golden import EXAMPLES, golden
from tests.trainingjob.objects.golden import written

for name, objects in EXAMPLES.items():
    golden(name).write_text(written(objects()))
