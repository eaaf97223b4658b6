# Nothing writes EndpointSlices for the Service: it has no selector.
ask shop/web
exit 4
says shop/web has no EndpointSlice
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
