{{/* What contradicts each other: a sentence each. The shape of each value alone is held by values.schema.json. */}}
{{- define "holdfast.checks" -}}
{{- $values := .Values -}}
{{- if hasPrefix "kube-" .Release.Namespace -}}
{{- fail (printf "holdfast can't be installed in %s: give it a namespace of its own, such as --namespace=holdfast-system" .Release.Namespace) -}}
{{- end -}}
{{- if and $values.image.tag $values.image.digest -}}
{{- fail "image.tag and image.digest are both set: a digest says which image it is; leave the tag empty" -}}
{{- end -}}
{{- if and $values.nodeAgent.enabled (eq $values.nodeAgent.namespace.name .Release.Namespace) -}}
{{- fail (printf "nodeAgent.namespace.name is %s, the operator's own namespace, which keeps to the restricted profile: agents need one of their own" .Release.Namespace) -}}
{{- end -}}
{{- if and $values.spot.ownCloudIdentity (not $values.spot.enabled) -}}
{{- fail "spot.ownCloudIdentity lists namespaces, but spot.enabled is false: no machine is made" -}}
{{- end -}}
{{- if $values.operator.namespaces -}}
{{- range $values.spot.ownCloudIdentity -}}
{{- if not (has . $values.operator.namespaces) -}}
{{- fail (printf "spot.ownCloudIdentity lists %s, which is not among operator.namespaces: the operator does not look after it" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $values.userRoles.aggregate (not $values.userRoles.create) -}}
{{- fail "userRoles.aggregate is true, but userRoles.create is false: there is no role to aggregate" -}}
{{- end -}}
{{- if and $values.operator.affinity.podAntiAffinity (ne $values.operator.antiAffinity "none") -}}
{{- fail (printf "operator.affinity.podAntiAffinity and operator.antiAffinity: %s are both set: set operator.antiAffinity to none, or leave the other out" $values.operator.antiAffinity) -}}
{{- end -}}
{{- include "holdfast.checkArgs" (list "operator.extraArgs" $values.operator.extraArgs (include "holdfast.operatorOptions" . | fromYaml)) -}}
{{- include "holdfast.checkArgs" (list "nodeAgent.extraArgs" $values.nodeAgent.extraArgs (include "holdfast.agentOptions" . | fromYaml)) -}}
{{- end }}

{{/* (list name arguments options): none of the arguments is an option that a value sets. */}}
{{- define "holdfast.checkArgs" -}}
{{- $name := index . 0 -}}
{{- $options := index . 2 -}}
{{- range $argument := index . 1 -}}
{{- $option := regexReplaceAll "=.*" $argument "" | trimPrefix "--" | trimPrefix "no-" -}}
{{- with get $options $option -}}
{{- fail (printf "%s: --%s is set by %s" $name $option .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Options of `holdfast operator`, and what sets each. */}}
{{- define "holdfast.operatorOptions" -}}
default-image: trainings.image
holdfast-image: trainings.sidecarImage
framework-image: trainings.frameworkImages
tensorboard-image: trainings.tensorboardImage
rdma-resource: trainings.rdmaResource
claim-size: trainings.claimSize
service-monitors: trainings.serviceMonitors
gang-admission: trainings.gangAdmission
discovery: trainings.discovery
probe-nodes: trainings.probeNodes
per-job-metrics: trainings.perJobMetrics
forbid: trainings.forbid
namespace: operator.namespaces
plain-http-registry: plainHttpRegistries
checkpoint-agent: checkpointAgent
own-cloud-identity: spot.ownCloudIdentity
node-service-account: nodeAgent.namespace
kubeconfig: the chart
leader-elect: the chart
lease-namespace: the chart
metrics-port: the chart
health-port: the chart
reports-port: the chart
reports-address: the chart
bind-address: the chart
{{- end }}

{{/* The same of `holdfast node`. */}}
{{- define "holdfast.agentOptions" -}}
plain-http-registry: plainHttpRegistries
preemption-notices: nodeAgent.preemptionNotices
kubelet-certificate: nodeAgent.signedKubeletCertificates
node-name: the chart
node-address: the chart
checkpoints-folder: the chart
journal-folder: the chart
token-file: the chart
operator-namespace: the chart
metrics-port: the chart
bind-address: the chart
kubeconfig: the chart
{{- end }}
