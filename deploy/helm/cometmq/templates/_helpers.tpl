{{/* Names, labels, and parts that all pods share. */}}

{{- define "cometmq.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a component; the argument has root, component and optionally group. */}}
{{- define "cometmq.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .group }}
cometmq.io/broker-name: {{ . }}
{{- end }}
{{- end -}}

{{- define "cometmq.labels" -}}
{{ include "cometmq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: cometmq
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The reference of an image; the argument has root and image. */}}
{{- define "cometmq.image" -}}
{{- $name := .image.repository -}}
{{- with .image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "cometmq.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "cometmq.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* A settings file from a map. Helm holds integers as floats, and would print 4194304 as 4.194304e+06. */}}
{{- define "cometmq.properties" -}}
{{- range $key, $value := . }}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
{{ $key }}={{ int64 $value }}
{{- else }}
{{ $key }}={{ $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Name servers for brokers: one name resolves to all of them, so brokers register with each. */}}
{{- define "cometmq.namesrvPods" -}}
{{ include "cometmq.fullname" . }}-namesrv-pods.{{ .Release.Namespace }}.svc:9876
{{- end -}}

{{/* Name servers for clients. */}}
{{- define "cometmq.namesrv" -}}
{{ include "cometmq.fullname" . }}-namesrv.{{ .Release.Namespace }}.svc:9876
{{- end -}}

{{/* The host of a broker in its headless Service; the argument has root, group and id. */}}
{{- define "cometmq.brokerHost" -}}
{{- $set := printf "%s-%s" (include "cometmq.fullname" .root) .group.name -}}
{{ $set }}-{{ .id }}.{{ $set }}.{{ .root.Release.Namespace }}.svc
{{- end -}}

{{- define "cometmq.record" -}}
{{- $etcd := .root.Values.groupRecord.etcd -}}
{{- $prefix := default (printf "cometmq/%s/%s" .root.Release.Namespace .root.Release.Name) $etcd.prefix -}}
etcd:{{ if $etcd.tls }}https://{{ end }}{{ join "," $etcd.endpoints }}/{{ trimAll "/" $prefix }}/{{ .group.name }}
{{- end -}}

{{/* The Secret with the key of a group; the argument has root and group. */}}
{{- define "cometmq.keySecret" -}}
{{- default (printf "%s-%s-key" (include "cometmq.fullname" .root) .group.name) .root.Values.groupKey.existingSecret -}}
{{- end -}}

{{/* Whether a group demands proofs of its key: "required" or "optional". Pods of earlier releases have
     no key; the annotation of the running StatefulSet says whether the last upgrade gave it to them. */}}
{{- define "cometmq.keyMode" -}}
{{- if eq .root.Values.groupKey.mode "auto" -}}
{{- $name := printf "%s-%s" (include "cometmq.fullname" .root) .group.name -}}
{{- $set := lookup "apps/v1" "StatefulSet" .root.Release.Namespace $name -}}
{{- $marks := $set | dig "spec" "template" "metadata" "annotations" (dict) -}}
{{- if and $set (not (hasKey $marks "cometmq.io/group-key")) }}optional{{ else }}required{{ end -}}
{{- else -}}
{{- .root.Values.groupKey.mode -}}
{{- end -}}
{{- end -}}

{{- define "cometmq.keyVolume" -}}
- name: group-key
  secret:
    secretName: {{ include "cometmq.keySecret" . }}
    defaultMode: 0440
    items: [{key: group.key, path: group.key}]
{{- end -}}

{{- define "cometmq.keyMount" -}}
- {name: group-key, mountPath: /etc/cometmq/group-key, readOnly: true}
{{- end -}}

{{/* The settings file of a group's elector, for the elector and the console; the argument has root, group
     and keyFolder. Electors believe only brokers with the key, so they get it once all brokers have it. */}}
{{- define "cometmq.electorConf" -}}
{{- $root := .root -}}
{{- $group := .group -}}
{{- $members := list -}}
{{- range $id := until (int $group.replicas) -}}
{{- $members = append $members (printf "%d=%s:10913" $id (include "cometmq.brokerHost" (dict "root" $root "group" $group "id" $id))) -}}
{{- end -}}
brokerName={{ $group.name }}
groupRecord={{ include "cometmq.record" (dict "root" $root "group" $group) }}
controlMembers={{ join ";" $members }}
{{- with $group.elector.leavingMembers }}
leavingMembers={{ range $index, $id := . }}{{ if $index }};{{ end }}{{ int $id }}{{ end }}
{{- end }}
minInSync={{ int $group.minInSync }}
adminHttpPort=8080
{{- if eq (include "cometmq.keyMode" (dict "root" $root "group" $group)) "required" }}
groupKeyFile={{ .keyFolder }}/group.key
{{- end }}
{{- range $key := list "renewDeadlineMills" "heardWithinMills" }}
{{- with get $group.config $key }}
{{ $key }}={{ int . }}
{{- end }}
{{- end }}
{{- if $root.Values.tls.enabled }}
tls.enable=true
{{- with $root.Values.tls.controlName }}
controlTlsName={{ . }}
{{- end }}
{{- end }}
{{- include "cometmq.clientTls" $root }}
{{- end -}}

{{- define "cometmq.clientTls" -}}
{{- if .Values.tls.enabled }}
tls.client.certPath=/etc/cometmq/tls/tls.crt
tls.client.keyPath=/etc/cometmq/tls/tls.key
tls.client.trustCertPath=/etc/cometmq/tls/ca.crt
tls.client.authServer=true
{{- end }}
{{- end -}}

{{- define "cometmq.serverTls" -}}
{{- if .Values.tls.enabled }}
tls.server.mode={{ .Values.tls.mode }}
tls.server.certPath=/etc/cometmq/tls/tls.crt
tls.server.keyPath=/etc/cometmq/tls/tls.key
tls.server.trustCertPath=/etc/cometmq/tls/ca.crt
tls.server.need.client.auth={{ .Values.tls.clientAuth }}
{{- end }}
{{- end -}}

{{- define "cometmq.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user }}
runAsGroup: {{ .group }}
fsGroup: {{ .group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "cometmq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Fields of a pod before its containers. Service links are off: Kubernetes would set variables such
     as COMETMQ_BROKER_A_PORT, and the programs read settings from variables of this form. */}}
{{- define "cometmq.podStart" -}}
serviceAccountName: {{ include "cometmq.serviceAccountName" . }}
automountServiceAccountToken: false
{{ include "cometmq.podLinks" . }}
{{- end -}}

{{- define "cometmq.podLinks" -}}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "cometmq.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
affinity:
{{- if .values.affinity }}
  {{- toYaml .values.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "cometmq.selector" . | nindent 14 }}
{{- end }}
topologySpreadConstraints:
{{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "cometmq.selector" $ | nindent 8 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "cometmq.podAnnotations" -}}
{{- if .root.Values.metrics.scrapeAnnotations }}
prometheus.io/scrape: "true"
prometheus.io/port: "8080"
prometheus.io/path: /metrics
{{- end }}
{{- with .annotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A program is alive while its event loop answers; a broker recovers its store before it is ready. */}}
{{- define "cometmq.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: {{ div (add (int .startupSeconds) 1) 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 3
  timeoutSeconds: 3
{{- end -}}

{{- define "cometmq.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .className }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ .size | quote }}}}
{{- end -}}

{{- define "cometmq.tlsVolume" -}}
{{- if .Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ .Values.tls.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "cometmq.tlsMount" -}}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/cometmq/tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* Options of `cometmq` in the test. */}}
{{- define "cometmq.testOptions" -}}
{{- if and .Values.tls.enabled (eq .Values.tls.mode "enforcing") -}}
--tls-config /tmp/tls.properties
{{- end -}}
{{- end -}}
