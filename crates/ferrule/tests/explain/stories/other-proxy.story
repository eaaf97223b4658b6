# The Service is labelled for another proxy.
ask shop/web
exit 0
says its label service.kubernetes.io/service-proxy-name is "mesh"
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: mesh}}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
