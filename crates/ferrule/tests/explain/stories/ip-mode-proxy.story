# The load balancer has ipMode Proxy: the node does not redirect its address.
ask 198.51.100.1:80
exit 3
says 198.51.100.1 is a load balancer address of shop/web with ipMode Proxy
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, externalTrafficPolicy: Cluster, healthCheckNodePort: 32100, loadBalancerSourceRanges: [], ports: [{name: http, port: 80, nodePort: 30080}]}
status: {loadBalancer: {ingress: [{ip: 198.51.100.1, ipMode: Proxy}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
  - {addresses: [10.1.0.1], nodeName: node-a}
