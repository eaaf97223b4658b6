# The Service is a name for another name.
ask shop/web
exit 0
says Service shop/web is of type ExternalName
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: ExternalName, externalName: example.com}
