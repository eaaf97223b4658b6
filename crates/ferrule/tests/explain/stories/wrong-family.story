# The Service wants both families, and its Pods have IPv4 alone.
ask [fd00:96::a]:80
exit 4
says shop/web has no IPv6 EndpointSlice, only ones of the other family
ask shop/web
exit 0
says shop/web has no IPv6 EndpointSlice, only ones of the other family
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIPs: [10.96.0.10, "fd00:96::a"], ipFamilies: [IPv4, IPv6], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
  - {addresses: [10.1.0.1], nodeName: node-a}
