{{- define "ferrule.labels" -}}
app.kubernetes.io/name: ferrule
app.kubernetes.io/part-of: ferrule
{{- end }}

{{- define "ferrule.image" -}}
{{- $name := ternary (printf "%s-iptables" .Values.image.repository) .Values.image.repository (eq .Values.mode "iptables") -}}
{{ $name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
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
