"""What a kubelet is to a node, for one machine and without containers: pods run as processes."""
