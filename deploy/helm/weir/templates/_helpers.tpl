{{- define "weir.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of the objects. At most 52 characters, so that suffixes and a pod's hash fit into 63. */}}
{{- define "weir.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if .Values.aiGateway.enabled -}}
envoy-ai-gateway-ratelimit
{{- else -}}
{{- $name := include "weir.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What never changes between upgrades: a Deployment's selector is immutable. */}}
{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weir.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "weir.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "weir.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "weir.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end -}}

{{/* "true" or "". */}}
{{- define "weir.redis" -}}
{{- if or .Values.redis.url .Values.redis.urlSecret.name -}}true{{- end -}}
{{- end -}}

{{/* HOST:PORT of the control plane, or "". */}}
{{- define "weir.xdsServer" -}}
{{- ternary .Values.aiGateway.controller .Values.rules.xds.server .Values.aiGateway.enabled -}}
{{- end -}}

{{- define "weir.onStoreFailure" -}}
{{- default (ternary "error" "local" .Values.aiGateway.enabled) .Values.onStoreFailure -}}
{{- end -}}

{{- define "weir.exampleRules" -}}
{{- $r := .Values.rules -}}
{{- if not (or $r.files $r.existingConfigMap $r.published (include "weir.xdsServer" .)) -}}true{{- end -}}
{{- end -}}

{{/* The ConfigMap with rule files, or "". */}}
{{- define "weir.rulesConfigMap" -}}
{{- if .Values.rules.existingConfigMap -}}
{{- .Values.rules.existingConfigMap -}}
{{- else if or .Values.rules.files (include "weir.exampleRules" .) -}}
{{- include "weir.fullname" . }}-rules
{{- end -}}
{{- end -}}

{{- define "weir.allowEmpty" -}}
{{- if kindIs "bool" .Values.rules.allowEmpty -}}
{{- if .Values.rules.allowEmpty -}}true{{- end -}}
{{- else if and (or .Values.rules.published (include "weir.xdsServer" .)) (not (include "weir.rulesConfigMap" .)) -}}
true
{{- end -}}
{{- end -}}

{{- define "weir.replicas" -}}
{{- if kindIs "invalid" .Values.replicas -}}
{{- ternary 2 1 (eq (include "weir.redis" .) "true") -}}
{{- else -}}
{{- int .Values.replicas -}}
{{- end -}}
{{- end -}}

{{/* How many replicas share a limit while Redis is away. A DaemonSet's number is known to nobody here. */}}
{{- define "weir.fallbackReplicas" -}}
{{- if not (kindIs "invalid" .Values.fallbackReplicas) -}}
{{- int .Values.fallbackReplicas -}}
{{- else if eq .Values.kind "DaemonSet" -}}
1
{{- else if .Values.autoscaling.enabled -}}
{{- int .Values.autoscaling.maxReplicas -}}
{{- else -}}
{{- include "weir.replicas" . -}}
{{- end -}}
{{- end -}}

{{/* A quantity of memory, such as 256Mi, in bytes. */}}
{{- define "weir.bytes" -}}
{{- $text := . -}}
{{- if not (kindIs "string" $text) -}}{{- $text = printf "%d" (int64 $text) -}}{{- end -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if or (not $number) (not (hasKey $units $unit)) -}}
{{- fail (printf "resources.limits.memory is %q; write a number with Mi, Gi, M or G, such as 256Mi" $text) -}}
{{- end -}}
{{- mulf (float64 $number) (float64 (get $units $unit)) | floor | int64 -}}
{{- end -}}

{{- define "weir.memoryMaxCounters" -}}
{{- if not (kindIs "invalid" .Values.memoryMaxCounters) -}}
{{- int64 .Values.memoryMaxCounters -}}
{{- else -}}
{{- with dig "limits" "memory" "" (.Values.resources | default dict) -}}
{{- max 1000 (div (int64 (include "weir.bytes" .)) 384) | min 1000000000 -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "weir.terminationGracePeriodSeconds" -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- add (int .Values.drainDelay) (int .Values.stopTimeout) 20 -}}
{{- else -}}
{{- int .Values.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{/* The store's URL with the options for files that are mounted. */}}
{{- define "weir.redisURL" -}}
{{- $url := .Values.redis.url -}}
{{- $options := list -}}
{{- if .Values.redis.passwordSecret.name -}}
{{- $options = append $options (printf "password_file=/etc/weir/redis/%s" .Values.redis.passwordSecret.key) -}}
{{- end -}}
{{- if .Values.redis.tls.secretName -}}
{{- $options = append $options "tls_ca=/etc/weir/redis-tls/ca.crt" -}}
{{- if .Values.redis.tls.clientCertificate -}}
{{- $options = concat $options (list "tls_cert=/etc/weir/redis-tls/tls.crt" "tls_key=/etc/weir/redis-tls/tls.key") -}}
{{- end -}}
{{- end -}}
{{- if $options -}}
{{- $url = printf "%s%s%s" $url (ternary "&" "?" (contains "?" $url)) (join "&" $options) -}}
{{- end -}}
{{- $url -}}
{{- end -}}

{{- define "weir.headless" -}}
{{- if kindIs "bool" .Values.service.headless -}}
{{- if .Values.service.headless -}}true{{- end -}}
{{- else if eq .Values.kind "Deployment" -}}true{{- end -}}
{{- end -}}

{{- define "weir.job" -}}
{{- default (include "weir.fullname" .) .Values.metrics.job -}}
{{- end -}}

{{- define "weir.httpScheme" -}}
{{- ternary "HTTPS" "HTTP" (ne .Values.http.tls.secretName "") -}}
{{- end -}}

{{/* The endpoint of a PodMonitor or ServiceMonitor. */}}
{{- define "weir.endpoint" -}}
{{- $monitor := .monitor -}}
- port: http
  path: /metrics
  interval: {{ $monitor.interval }}
  scheme: {{ include "weir.httpScheme" .root | lower }}
  {{- with $monitor.tlsConfig }}
  tlsConfig: {{- toYaml . | nindent 4 }}
  {{- end }}
  relabelings:
    # The alerts hold for each job by itself.
    - {targetLabel: job, replacement: {{ include "weir.job" .root | quote }}}
{{- end -}}
