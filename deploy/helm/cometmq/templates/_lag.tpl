{{/* Parts that the pods of the collector and of a report share. */}}

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
