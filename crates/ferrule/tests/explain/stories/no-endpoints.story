# The selector matches no Pod.
ask shop/web
exit 4
says 10.96.0.10:80/TCP (ClusterIP) of shop/web:http refuses connections
says list no endpoint, so spec.selector matches no Pod
ask 10.96.0.10:80/TCP
exit 4
says spec.selector matches no Pod
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
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: []
