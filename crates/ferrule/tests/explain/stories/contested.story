# Two Services name one external IP: the older one holds it.
ask shop/web:http
exit 0
says 192.0.2.100:80/TCP (ExternalIP) of shop/web:http leads to another Service: shop/old:http holds the address, because its Service was created first
ask 192.0.2.100:80
exit 0
says 192.0.2.100:80/TCP (ExternalIP) of shop/old:http leads to its only endpoint
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, creationTimestamp: "2024-02-01T00:00:00Z"}
spec: {clusterIP: 10.96.0.10, externalIPs: [192.0.2.100], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
  - {addresses: [10.1.0.1], nodeName: node-a}
---
apiVersion: v1
kind: Service
metadata: {name: old, namespace: shop, creationTimestamp: "2024-01-01T00:00:00Z"}
spec: {clusterIP: 10.96.0.11, externalIPs: [192.0.2.100], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: old-1, namespace: shop, labels: {kubernetes.io/service-name: old}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
  - {addresses: [10.1.0.7]}
