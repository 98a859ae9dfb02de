"""A whole cluster on one machine: the embedded engine, its controllers, the operator, and this machine as the node."""
