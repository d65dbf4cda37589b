{{/* Parts of the pods of the collector, of a report and of its executors. */}}

{{- define "cometmq.lagEnv" -}}
- {name: NAMESRV_ADDR, value: {{ include "cometmq.namesrv" . }}}
{{- if .Values.acl.enabled }}
- {name: COMETMQ_CREDENTIALS, value: /etc/cometmq/account/tools.yml}
{{- end }}
{{- end -}}

{{- define "cometmq.lagTlsOptions" -}}
{{- if and .Values.tls.enabled (eq .Values.tls.mode "enforcing") -}}
, --tls-ca, /etc/cometmq/tls/ca.crt
{{- end -}}
{{- end -}}

{{/* The history can be mounted on one node only, and the collector holds it; the argument is the collector's. */}}
{{- define "cometmq.lagAffinity" -}}
podAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "cometmq.selector" . | nindent 10 }}
{{- end -}}

{{/* Options that have executors run the tasks. The report's pod is Spark's driver; Kubernetes fills in
     its name and address, and deletes the executors with it. */}}
{{- define "cometmq.lagSpark" -}}
{{- $values := .Values.lagReport }}
{{- $count := int $values.executors.count }}
{{- $cores := int $values.executors.cores }}
{{- if $count }}
- --master
- k8s://https://kubernetes.default.svc
{{- $settings := dict
  "spark.blockManager.port" 7079
  "spark.driver.host" "$(POD_IP)"
  "spark.driver.port" 7078
  "spark.executor.cores" $cores
  "spark.executor.instances" $count
  "spark.executor.memory" $values.executors.memory
  "spark.executor.memoryOverheadFactor" 0.4
  "spark.kubernetes.container.image" (include "cometmq.image" (dict "root" . "image" $values.image))
  "spark.kubernetes.container.image.pullPolicy" $values.image.pullPolicy
  "spark.kubernetes.driver.pod.name" "$(POD_NAME)"
  "spark.kubernetes.driver.service.deleteOnTermination" false
  "spark.kubernetes.executor.podTemplateFile" "/etc/cometmq/executor/pod.yaml"
  "spark.kubernetes.executor.request.cores" $values.executors.cpu
  "spark.kubernetes.namespace" .Release.Namespace
  "spark.sql.shuffle.partitions" (mul 2 $count $cores) }}
{{- range $key, $value := $settings }}
- --conf
- {{ $key }}={{ $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "cometmq.lagSparkPods" -}}
matchLabels:
  app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
  app.kubernetes.io/instance: {{ .Release.Name }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [lag-report, lag-executor]}
{{- end -}}

{{- define "cometmq.lagMounts" -}}
- {name: history, mountPath: /data}
- {name: tmp, mountPath: /tmp}
- {name: work, mountPath: /opt/spark/local}
- {name: home, mountPath: /opt/spark/work-dir}
{{- if .Values.acl.enabled }}
- {name: account, mountPath: /etc/cometmq/account, readOnly: true}
{{- end }}
{{- include "cometmq.tlsMount" . }}
{{- end -}}

{{- define "cometmq.lagVolumes" -}}
- name: history
  persistentVolumeClaim: {claimName: {{ include "cometmq.fullname" . }}-lag}
- name: tmp
  emptyDir: {sizeLimit: 1Gi}
- name: work
  emptyDir: {sizeLimit: 4Gi}
- name: home
  emptyDir: {sizeLimit: 1Gi}
{{- if .Values.acl.enabled }}
- name: account
  secret:
    secretName: {{ .Values.acl.adminSecret }}
    defaultMode: 0440
    items: [{key: tools.yml, path: tools.yml}]
{{- end }}
{{- include "cometmq.tlsVolume" . }}
{{- end -}}
