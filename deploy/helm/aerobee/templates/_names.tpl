{{- define "aerobee.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "aerobee.selector" -}}
app.kubernetes.io/name: aerobee
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "aerobee.labels" -}}
{{ include "aerobee.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
