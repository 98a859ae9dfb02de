"""Kubernetes' own types: those that holdfast reads of objects, and those that fields of our kinds have.

What is read has no bounds: an API server has validated it. The fields have bounds that keep rules over them affordable;
where a type is in both, that of the fields has the suffix Field.
"""
