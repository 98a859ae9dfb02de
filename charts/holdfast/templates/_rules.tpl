{{/* What the operator may do in each namespace that it looks after: no more than its controllers ask for. */}}
{{- define "holdfast.namespaceRules" -}}
# delete: a job whose ttlSecondsAfterFinished is over.
- apiGroups: [ml.example.com]
  resources: [trainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [ml.example.com]
  resources: [trainingjobs/status]
  verbs: [patch]
# Owner references that hold up the owner's deletion need this where the API server checks them.
- apiGroups: [ml.example.com]
  resources: [trainingjobs/finalizers]
  verbs: [update]
# patch: the finalizer. delete: a workload whose ttlSecondsAfterFinished is over.
- apiGroups: [gpu.warp.dev]
  resources: [gpuworkloads]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [gpu.warp.dev]
  resources: [gpuworkloads/status]
  verbs: [patch]
- apiGroups: [gpu.warp.dev]
  resources: [gpuworkloads/finalizers]
  verbs: [update]
# delete: a job whose ttlSecondsAfterFinished is over.
- apiGroups: [training.training.dcnlab.com]
  resources: [spotinstancejobs]
  verbs: [get, list, watch, delete]
# patch: the finalizer that keeps a template while machines made from it exist.
- apiGroups: [training.training.dcnlab.com]
  resources: [spotinstancevms]
  verbs: [get, list, watch, patch]
# create: a machine is written down here before it is made. patch: its finalizer. delete: it is given back.
- apiGroups: [training.training.dcnlab.com]
  resources: [provisionedinstances]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [training.training.dcnlab.com]
  resources: [spotinstancejobs/status, spotinstancevms/status, provisionedinstances/status]
  verbs: [patch]
- apiGroups: [training.training.dcnlab.com]
  resources: [spotinstancejobs/finalizers]
  verbs: [update]
# patch: the label with the node whose agent carries out the run. create, delete: the checkpoints of SpotInstanceJobs.
- apiGroups: [migration.dcnlab.com]
  resources: [checkpointbackups]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [migration.dcnlab.com]
  resources: [checkpointbackups/status]
  verbs: [patch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
# delete: the kept logs of attempts of long ago. holdfast-node-endpoint is one of them, and holdfast-machine-projects:
# where machines were made. get: kube-public/cluster-info, too.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, list, watch, create, patch]
# TensorBoard.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
# A claim for checkpoints is made, and never changed or deleted; get: whose one is that has its name.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create]
# delete: the workers that are left of a broken gang, and pods whose backup has stopPod.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
# What the workers that failed said last.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
# list: why workers do not start.
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
# Only with --service-monitors.
- apiGroups: [monitoring.coreos.com]
  resources: [servicemonitors]
  verbs: [create]
{{- end }}

{{/* What has no namespace. */}}
{{- define "holdfast.clusterRules" -}}
# What is free, and who goes first.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list, watch]
# Whether a report's token is a worker's own.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end }}
