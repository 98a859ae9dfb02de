"""Kubernetes' own types as they are embedded in our kinds, with bounds that keep rules over them affordable."""
