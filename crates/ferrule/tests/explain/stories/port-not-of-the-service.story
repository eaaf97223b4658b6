# The client asks for a port that the Service does not have.
ask 10.96.0.10:8080
exit 3
says 10.96.0.10 is the ClusterIP of shop/web, which has no port for 10.96.0.10:8080; it has 80/TCP (http)
ask 10.96.0.10:80/UDP
exit 3
says which has no port for 10.96.0.10:80/UDP; it has 80/TCP (http)
ask shop/web:https
exit 3
says Service shop/web has no port https; it has 80/TCP (http)
ask shop/web:80
exit 0
says leads to its only endpoint
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
endpoints:
  - {addresses: [10.1.0.1], nodeName: node-a}
