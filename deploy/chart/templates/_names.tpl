{{- define "ferrule.labels" -}}
app.kubernetes.io/name: ferrule
app.kubernetes.io/part-of: ferrule
{{- end }}

{{/* Not empty in modes that run the iptables programs. */}}
{{- define "ferrule.iptables" -}}
{{- if has .Values.mode (list "iptables" "ipvs") }}yes{{ end }}
{{- end }}

{{- define "ferrule.image" -}}
{{ .Values.image.repository }}{{ if include "ferrule.iptables" . }}-iptables{{ end }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "ferrule.args" -}}
- proxy
- --config=/etc/ferrule/config.conf
- --hostname-override=$(NODE_NAME)
{{- end }}

{{- define "ferrule.environment" -}}
envFrom:
  - configMapRef:
      name: ferrule-apiserver
env:
  - name: NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
{{- end }}
