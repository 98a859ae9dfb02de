"""Pods that go on from a container checkpoint: where they may run, how they look, and why one could not be created.

What a runtime needs is in one file per runtime, behind the protocol of runtime.py.
"""
