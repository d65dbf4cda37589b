{{/* Refuse values that contradict each other, which a schema cannot express. */}}

{{- define "cometmq.check" -}}
{{- $fullname := include "cometmq.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $fullname) -}}
{{- fail (printf "fullnameOverride: %s cannot begin the names of Services: set one of lowercase letters, digits and hyphens that begins with a letter" $fullname) -}}
{{- end -}}
{{- $names := list -}}
{{- range $index, $item := .Values.brokerGroups -}}
{{- $group := mergeOverwrite (deepCopy $.Values.brokerGroupDefaults) $item -}}
{{- $path := printf "brokerGroups[%d]" $index -}}
{{- if has $group.name $names -}}
{{- fail (printf "%s.name: %s is the name of another group: give each group its own" $path $group.name) -}}
{{- end -}}
{{- $names = append $names $group.name -}}
{{- if has $group.name (list "namesrv" "namesrv-pods" "txn-checker" "exporter" "console" "lag" "tests") -}}
{{- fail (printf "%s.name: %s is the name of a component of the chart: choose another" $path $group.name) -}}
{{- end -}}
{{- include "cometmq.checkGroup" (dict "root" $ "group" $group "path" $path) -}}
{{- end -}}
{{- include "cometmq.checkConfig" (dict "config" .Values.namesrv.config "path" "namesrv.config" "owned" (include "cometmq.ownedNamesrv" .)) -}}
{{- include "cometmq.checkConfig" (dict "config" .Values.txnChecker.config "path" "txnChecker.config" "owned" (include "cometmq.ownedTxnChecker" .)) -}}
{{- include "cometmq.checkConfig" (dict "config" .Values.exporter.config "path" "exporter.config" "owned" (include "cometmq.ownedExporter" .)) -}}
{{- if and .Values.acl.enabled (not .Values.acl.existingSecret) -}}
{{- fail "acl.existingSecret: name the Secret with plain_acl.yml, because acl.enabled is true" -}}
{{- end -}}
{{- if and .Values.acl.enabled (not .Values.acl.adminSecret) (or .Values.txnChecker.enabled .Values.lagReport.enabled .Values.tests.enabled) -}}
{{- fail "acl.adminSecret: name the Secret with accessKey and secretKey of an administrator; the txn-checker, lag reports and tests need it" -}}
{{- end -}}
{{- if and .Values.exporter.enabled .Values.acl.enabled (not .Values.exporter.accountSecret) (not .Values.acl.adminSecret) -}}
{{- fail "exporter.accountSecret: name the Secret with accessKey and secretKey of any account, or set acl.adminSecret" -}}
{{- end -}}
{{- include "cometmq.checkConfig" (dict "config" .Values.console.config "path" "console.config" "owned" (include "cometmq.ownedConsole" .)) -}}
{{- if and .Values.console.enabled .Values.acl.enabled (not .Values.console.accountSecret) (not .Values.acl.adminSecret) -}}
{{- fail "console.accountSecret: name the Secret with accessKey and secretKey of an account, or set acl.adminSecret" -}}
{{- end -}}
{{- if and .Values.console.ingress.enabled (not .Values.console.ingress.host) -}}
{{- fail "console.ingress.host: name the host of the console, because console.ingress.enabled is true" -}}
{{- end -}}
{{- if and .Values.tls.enabled (not .Values.tls.existingSecret) -}}
{{- fail "tls.existingSecret: name the Secret with tls.crt, tls.key and ca.crt, because tls.enabled is true" -}}
{{- end -}}
{{- if and .Values.groupRecord.etcd.tls (not .Values.tls.enabled) -}}
{{- fail "groupRecord.etcd.tls: etcd is verified by ca.crt of tls.existingSecret: set tls.enabled too" -}}
{{- end -}}
{{- end -}}

{{- define "cometmq.checkGroup" -}}
{{- $group := .group -}}
{{- $replicas := int $group.replicas -}}
{{- /* Kubernetes labels pods with this name and 11 characters more; a label has at most 63. */ -}}
{{- $name := printf "%s-%s" (include "cometmq.fullname" .root) $group.name -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "%s.name: pods cannot be named %s, which has more than 52 characters: shorten it, or fullnameOverride" .path $name) -}}
{{- end -}}
{{- include "cometmq.checkConfig" (dict "config" $group.config "path" (printf "%s.config" .path) "owned" (include "cometmq.ownedBroker" .)) -}}
{{- if and (gt $replicas 1) (not .root.Values.groupRecord.etcd.endpoints) -}}
{{- fail (printf "%s.replicas: %d replicas agree on their master in etcd: set groupRecord.etcd.endpoints, or 1 replica" .path $replicas) -}}
{{- end -}}
{{- if gt (int $group.minInSync) $replicas -}}
{{- fail (printf "%s.minInSync: %d copies cannot be in sync with %d replicas" .path (int $group.minInSync) $replicas) -}}
{{- end -}}
{{- range $group.elector.leavingMembers -}}
{{- if ge (int .) $replicas -}}
{{- fail (printf "%s.elector.leavingMembers: %d is not the id of one of %d replicas" $.path (int .) $replicas) -}}
{{- end -}}
{{- end -}}
{{- include "cometmq.checkExternal" . -}}
{{- end -}}

{{- define "cometmq.checkExternal" -}}
{{- $group := .group -}}
{{- $external := $group.external -}}
{{- $replicas := int $group.replicas -}}
{{- if and (eq $external.type "NodePort") (ne (len $external.nodePorts) $replicas) -}}
{{- fail (printf "%s.external.nodePorts: name one port for each of %d replicas" .path $replicas) -}}
{{- end -}}
{{- if ne (len (uniq $external.nodePorts)) (len $external.nodePorts) -}}
{{- fail (printf "%s.external.nodePorts: two brokers cannot have the same port" .path) -}}
{{- end -}}
{{- if and (eq $external.type "LoadBalancer") (ne (len $external.hosts) $replicas) -}}
{{- fail (printf "%s.external.hosts: name the address of the load balancer of each of %d replicas" .path $replicas) -}}
{{- end -}}
{{- if and $external.hosts (ne (len $external.hosts) $replicas) -}}
{{- fail (printf "%s.external.hosts: name one address for each of %d replicas, or none" .path $replicas) -}}
{{- end -}}
{{- end -}}

{{- define "cometmq.checkConfig" -}}
{{- $owned := splitList " " .owned -}}
{{- range $key, $value := .config -}}
{{- if has $key $owned -}}
{{- fail (printf "%s.%s: the chart sets it; use the chart's own value" $.path $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cometmq.ownedBroker" -}}
brokerName brokerClusterName brokerId brokerRole brokerIP1 brokerIP2 advertisedAddresses listenPort haListenPort namesrvAddr storePathRootDir adminHttpPort flushDiskType groupRecord groupMembers minInSync controlPort controlBindAddress etcdUser etcdPassword aclEnable aclFile tls.server.mode tls.server.certPath tls.server.keyPath tls.server.trustCertPath tls.server.need.client.auth tls.enable tls.client.certPath tls.client.keyPath tls.client.trustCertPath tls.client.authServer
{{- end -}}

{{- define "cometmq.ownedNamesrv" -}}
listenPort kvConfigPath configStorePath adminHttpPort tls.server.mode tls.server.certPath tls.server.keyPath tls.server.trustCertPath tls.server.need.client.auth
{{- end -}}

{{- define "cometmq.ownedTxnChecker" -}}
namesrvAddr storePathRootDir adminHttpPort accessKey secretKey tls.enable tls.client.certPath tls.client.keyPath tls.client.trustCertPath tls.client.authServer
{{- end -}}

{{- define "cometmq.ownedConsole" -}}
namesrvAddr bindAddress listenPort adminHttpPort storePathRootDir tokenFile electorConfig programConfigs accessKey secretKey tls.enable tls.client.certPath tls.client.keyPath tls.client.trustCertPath tls.client.authServer
{{- end -}}

{{- define "cometmq.ownedExporter" -}}
namesrvAddr adminHttpPort accessKey secretKey tls.enable tls.client.certPath tls.client.keyPath tls.client.trustCertPath tls.client.authServer
{{- end -}}
