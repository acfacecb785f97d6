{{- define "pabal.labels" -}}
app.kubernetes.io/name: pabal
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pabal.selector" -}}
app.kubernetes.io/name: pabal
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pabal.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "pabal.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "pabal.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "pabal.environment" -}}
envFrom:
  - secretRef:
      name: {{ .Values.existingSecret }}
env:
  - name: PABAL_PUBLIC_URL
    value: {{ .Values.publicUrl | quote }}
  - name: PABAL_WORK_PORT
    value: "8701"
  - name: PABAL_WORK_HOST
    value: "0.0.0.0"
  {{- with .Values.trustedProxies }}
  - name: PABAL_TRUSTED_PROXIES
    value: {{ . | quote }}
  {{- end }}
  {{- range $name, $value := .Values.settings }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
{{- end }}

{{- define "pabal.volumes" -}}
# The keys come from the secret. What else is in the data directory is the head of the audit chain, which a new pod
# adopts; ship the log lines "audit sealed" to another system to compare it.
volumes:
  - name: data
    emptyDir: {}
  - name: tmp
    emptyDir: {}
{{- end }}
