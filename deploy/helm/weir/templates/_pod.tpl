{{/* The pod template of Deployment and DaemonSet. */}}
{{- define "weir.pod" -}}
{{- $v := .Values -}}
{{- $rules := include "weir.rulesConfigMap" . -}}
metadata:
  labels: {{- include "weir.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
    {{- with $v.commonLabels }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with $v.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    kubectl.kubernetes.io/default-container: weir
    {{- with $v.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "weir.serviceAccountName" . }}
  # Weir never asks Kubernetes.
  automountServiceAccountToken: false
  # Kubernetes would describe each Service by variables, those of this one WEIR_..., as Weir's own are called.
  enableServiceLinks: false
  # Longer than a stop takes at most: --drain-delay, --stop-timeout and 15 seconds.
  terminationGracePeriodSeconds: {{ include "weir.terminationGracePeriodSeconds" . }}
  {{- with $v.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $v.podSecurityContext }}
  securityContext: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $v.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and $v.topologySpreadConstraints (eq $v.kind "Deployment") }}
  topologySpreadConstraints:
    {{- range $v.topologySpreadConstraints }}
    {{- $more := dict "labelSelector" (dict "matchLabels" (include "weir.selectorLabels" $ | fromYaml)) "matchLabelKeys" (list "pod-template-hash") }}
    - {{- toYaml (merge (deepCopy .) $more) | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- with $v.initContainers }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: weir
      image: {{ include "weir.image" . | quote }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      args:
        - serve
        {{- if $rules }}
        - --rules=/etc/weir/rules
        {{- end }}
        {{- if $v.rules.published }}
        - --rules=store
        {{- end }}
        {{- with include "weir.xdsServer" . }}
        - --rules=xds
        - {{ printf "--xds-server=%s" . | quote }}
        - {{ printf "--xds-node-id=%s" (ternary "envoy-ai-gateway-ratelimit" $v.rules.xds.nodeID $v.aiGateway.enabled) | quote }}
        {{- if $v.rules.xds.tlsSecret }}
        - --xds-tls
        - --xds-tls-cert=/etc/weir/xds-tls/tls.crt
        - --xds-tls-key=/etc/weir/xds-tls/tls.key
        - --xds-tls-ca=/etc/weir/xds-tls/ca.crt
        {{- with $v.rules.xds.tlsServerName }}
        - {{ printf "--xds-tls-server-name=%s" . | quote }}
        {{- end }}
        {{- end }}
        {{- end }}
        {{- if include "weir.allowEmpty" . }}
        - --allow-empty-rules
        {{- end }}
        # A stopping pod goes on answering until the Envoys have noticed: by their health checks within a second or
        # two, else by DNS, which takes a few times longer.
        - --drain-delay={{ int $v.drainDelay }}s
        - --stop-timeout={{ int $v.stopTimeout }}s
        - --log-format={{ $v.logging.format }}
        {{- if ne $v.logging.level "info" }}
        - --log-level={{ $v.logging.level }}
        {{- end }}
        {{- with include "weir.onStoreFailure" . }}
        {{- if ne . "local" }}
        - --on-store-failure={{ . }}
        {{- end }}
        {{- end }}
        {{- if $v.aiGateway.enabled }}
        # As envoyproxy/ratelimit decides: each quota is charged by itself.
        - --charge-each
        - --allow-peek-at-limit
        - --no-retry-after
        {{- end }}
        {{- if and (include "weir.redis" .) (gt (int (include "weir.fallbackReplicas" .)) 1) }}
        # How many replicas share a limit while Redis does not answer and each counts its part.
        - --fallback-replicas={{ include "weir.fallbackReplicas" . }}
        {{- end }}
        {{- with include "weir.memoryMaxCounters" . }}
        # Counters take a third of the memory limit at most.
        - --memory-max-counters={{ . }}
        {{- end }}
        {{- if $v.grpc.tls.secretName }}
        - --grpc-tls-cert=/etc/weir/grpc-tls/tls.crt
        - --grpc-tls-key=/etc/weir/grpc-tls/tls.key
        {{- if $v.grpc.tls.clientCA }}
        - --grpc-tls-client-ca=/etc/weir/grpc-tls/ca.crt
        {{- end }}
        {{- with $v.grpc.tls.clientNames }}
        - {{ printf "--grpc-tls-client-names=%s" (join "," .) | quote }}
        {{- end }}
        {{- end }}
        {{- if $v.http.tls.secretName }}
        - --http-tls-cert=/etc/weir/http-tls/tls.crt
        - --http-tls-key=/etc/weir/http-tls/tls.key
        {{- if $v.http.tls.clientCA }}
        - --http-tls-client-ca=/etc/weir/http-tls/ca.crt
        {{- end }}
        {{- end }}
        {{- if $v.http.tokenSecret.name }}
        # Changing state over HTTP, and seeing values of keys, requires the token.
        - {{ printf "--http-token-file=/etc/weir/token/%s" $v.http.tokenSecret.key | quote }}
        {{- end }}
        {{- range $v.extraArgs }}
        - {{ . | quote }}
        {{- end }}
      {{- if or (include "weir.redis" .) $v.extraEnv }}
      env:
        {{- if $v.redis.urlSecret.name }}
        # Not an argument: everybody who may see processes or pods would see the password.
        - name: WEIR_STORE
          valueFrom: {secretKeyRef: {name: {{ $v.redis.urlSecret.name | quote }}, key: {{ $v.redis.urlSecret.key | quote }}}}
        {{- else if $v.redis.url }}
        - name: WEIR_STORE
          value: {{ include "weir.redisURL" . | quote }}
        {{- end }}
        {{- with $v.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      {{- end }}
      {{- with $v.extraEnvFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: grpc, containerPort: 8081, protocol: TCP}
        - {name: http, containerPort: 8080, protocol: TCP}
      startupProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ include "weir.httpScheme" . }}}
        {{- toYaml $v.startupProbe | nindent 8 }}
      livenessProbe:
        httpGet: {path: /healthz, port: http, scheme: {{ include "weir.httpScheme" . }}}
        {{- toYaml $v.livenessProbe | nindent 8 }}
      # Not GET /readyz, which also says whether Redis is reachable. With it, a lost Redis would make all pods unready,
      # and Envoy's failure_mode_deny would decide each request instead of the rule's on_store_failure. Alert on /readyz.
      readinessProbe:
        {{- if $v.grpc.tls.secretName }}
        # A kubelet's gRPC probe knows no TLS.
        httpGet: {path: "/readyz?exclude=store", port: http, scheme: {{ include "weir.httpScheme" . }}}
        {{- else }}
        grpc: {port: 8081, service: envoy.service.ratelimit.v3.RateLimitService}
        {{- end }}
        {{- toYaml $v.readinessProbe | nindent 8 }}
      {{- with $v.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $v.securityContext }}
      securityContext: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $mounts := include "weir.volumeMounts" . | trim }}
      {{- with $mounts }}
      volumeMounts: {{- . | nindent 8 }}
      {{- end }}
    {{- with $v.extraContainers }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- $volumes := include "weir.volumes" . | trim }}
  {{- with $volumes }}
  volumes: {{- . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "weir.volumeMounts" -}}
{{- $v := .Values -}}
{{- if include "weir.rulesConfigMap" . }}
# The whole directory: a file that is mounted by subPath never changes.
- {name: rules, mountPath: /etc/weir/rules, readOnly: true}
{{- end }}
{{- range $name, $secret := include "weir.secrets" . | fromYaml }}
- {name: {{ $name }}, mountPath: /etc/weir/{{ $name }}, readOnly: true}
{{- end }}
{{- with $v.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "weir.volumes" -}}
{{- $v := .Values -}}
{{- with include "weir.rulesConfigMap" . }}
- name: rules
  projected:
    sources:
      - configMap: {name: {{ . | quote }}}
      - configMap: {name: weir-istio-rules, optional: true} # of weir generate istio
{{- end }}
{{- range $name, $secret := include "weir.secrets" . | fromYaml }}
- name: {{ $name }}
  secret: {secretName: {{ $secret | quote }}, defaultMode: 0440}
{{- end }}
{{- with $v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The Secrets that are mounted, by the directory's name. Weir reads their files again when they change. */}}
{{- define "weir.secrets" -}}
{{- $v := .Values -}}
{{- $secrets := dict
  "redis" $v.redis.passwordSecret.name
  "redis-tls" $v.redis.tls.secretName
  "xds-tls" (ternary $v.rules.xds.tlsSecret "" (ne (include "weir.xdsServer" .) ""))
  "grpc-tls" $v.grpc.tls.secretName
  "http-tls" $v.http.tls.secretName
  "token" $v.http.tokenSecret.name -}}
{{- range $name, $secret := $secrets }}
{{- if $secret }}
{{ $name }}: {{ $secret | quote }}
{{- end }}
{{- end }}
{{- end -}}
