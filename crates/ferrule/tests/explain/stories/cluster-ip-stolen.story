# An external IP is the cluster IP of another Service.
ask shop/web:http
exit 0
says 10.96.0.53:80/TCP (ExternalIP) of shop/web:http leads to another Service: shop/dns:http holds the address, because ClusterIP comes before ExternalIP
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, externalIPs: [10.96.0.53], ports: [{name: http, port: 80}]}
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
metadata: {name: dns, namespace: shop}
spec: {clusterIP: 10.96.0.53, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, namespace: shop, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
  - {addresses: [10.1.0.1], nodeName: node-a}
