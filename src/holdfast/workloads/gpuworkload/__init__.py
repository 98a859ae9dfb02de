"""The Job that makes a GPUWorkload so, as the API server takes it."""
