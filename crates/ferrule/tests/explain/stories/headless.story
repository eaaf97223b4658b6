# The Service is headless.
ask shop/web
exit 0
says Service shop/web is headless (spec.clusterIP is None)
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: None, ports: [{name: http, port: 80}]}
