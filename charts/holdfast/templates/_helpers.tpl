{{/* Labels of an object: (list $ name). The pods have the first alone, so that a new chart replaces no pod. */}}
{{- define "holdfast.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{- define "holdfast.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "holdfast.operatorAccount" -}}
system:serviceaccount:{{ .Release.Namespace }}:holdfast-operator
{{- end }}

{{- define "holdfast.agentAccount" -}}
system:serviceaccount:{{ .Values.nodeAgent.namespace.name }}:holdfast-node
{{- end }}

{{/* Of a container: the policy, where one is set. */}}
{{- define "holdfast.pullPolicy" -}}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* Of a pod. */}}
{{- define "holdfast.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "holdfast.affinity" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/name" "holdfast")) -}}
{{- $affinity := deepCopy .Values.operator.affinity -}}
{{- if eq .Values.operator.antiAffinity "preferred" -}}
{{- $preferred := list (dict "weight" 100 "podAffinityTerm" $term) -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $preferred) -}}
{{- else if eq .Values.operator.antiAffinity "required" -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) -}}
{{- end -}}
{{- with $affinity }}{{ toYaml . }}{{ end -}}
{{- end }}

{{/* Options of the operator; those that have a value of the chart, and then the user's own. */}}
{{- define "holdfast.operatorArgs" -}}
{{- $image := include "holdfast.image" . -}}
- --default-image={{ .Values.trainings.image | default $image }}
- --holdfast-image={{ .Values.trainings.sidecarImage | default $image }}
- --node-service-account={{ include "holdfast.agentAccount" . }}
{{- range .Values.operator.namespaces }}
- --namespace={{ . }}
{{- end }}
{{- range $framework, $image := .Values.trainings.frameworkImages }}
- --framework-image={{ $framework }}={{ $image }}
{{- end }}
{{- with .Values.trainings.tensorboardImage }}
- --tensorboard-image={{ . }}
{{- end }}
{{- with .Values.trainings.rdmaResource }}
- --rdma-resource={{ . }}
{{- end }}
{{- with .Values.trainings.claimSize }}
- --claim-size={{ . }}
{{- end }}
{{- if .Values.trainings.serviceMonitors }}
- --service-monitors
{{- end }}
{{- if not .Values.trainings.gangAdmission }}
- --no-gang-admission
{{- end }}
{{- if ne .Values.trainings.discovery "job" }}
- --discovery={{ .Values.trainings.discovery }}
{{- end }}
{{- if not .Values.trainings.probeNodes }}
- --no-probe-nodes
{{- end }}
{{- if not .Values.trainings.perJobMetrics }}
- --no-per-job-metrics
{{- end }}
{{- range .Values.trainings.forbid }}
- --forbid={{ . }}
{{- end }}
{{- range .Values.plainHttpRegistries }}
- --plain-http-registry={{ . }}
{{- end }}
{{- if ne .Values.checkpointAgent "holdfast" }}
- --checkpoint-agent={{ .Values.checkpointAgent }}
{{- end }}
{{- range .Values.spot.ownCloudIdentity }}
- --own-cloud-identity={{ . }}
{{- end }}
{{- range .Values.operator.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "holdfast.agentArgs" -}}
- --bind-address=$(NODE_IP)
{{- if not .Values.nodeAgent.preemptionNotices }}
- --no-preemption-notices
{{- end }}
{{- range .Values.plainHttpRegistries }}
- --plain-http-registry={{ . }}
{{- end }}
{{- range .Values.nodeAgent.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
