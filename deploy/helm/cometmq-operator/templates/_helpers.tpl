{{/* Names and labels. */}}

{{- define "operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The first label is fixed: NetworkPolicies of broker groups let pods with it reach the control ports. */}}
{{- define "operator.selector" -}}
app.kubernetes.io/name: cometmq-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: cometmq
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "operator.image" -}}
{{- $name := .Values.image.repository -}}
{{- with .Values.image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Rights in each namespace with BrokerGroups. */}}
{{- define "operator.rules" -}}
- apiGroups: [cometmq.io]
  resources: [brokergroups, topics, consumergroups]
  verbs: [get, list, watch, patch]
- apiGroups: [cometmq.io]
  resources: [brokergroups/status, topics/status, consumergroups/status]
  verbs: [patch]
# Needed where the cluster checks owner references that block a deletion, as OpenShift does.
- apiGroups: [cometmq.io]
  resources: [brokergroups/finalizers, topics/finalizers, consumergroups/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
# The Service of a master has no selector: the operator writes where it leads.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch, create, patch]
# OpenShift demands this for addresses of pods.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices/restricted]
  verbs: [create]
# Certificates and accounts that specs name, read by name: without list and watch, no others are found.
# The operator writes one Secret for each group, with the key that its members prove to each other.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# The operator may grant only rights that it has: brokers read and change the Lease of their group.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
