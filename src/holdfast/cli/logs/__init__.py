"""`holdfast logs`: the logs of a pod, of a GPUWorkload, of a SpotInstanceJob's replicas, of a TrainingJob's workers."""
