# externalTrafficPolicy is Local, and the Pod is on another node.
ask 198.51.100.1:80
exit 4
says 198.51.100.1:80/TCP (LoadBalancerIP) of shop/web:http drops connections
says spec.externalTrafficPolicy is Local and no endpoint runs on this node, while 1 endpoint could serve elsewhere
ask shop/web
exit 0
says spec.externalTrafficPolicy is Local
ask 198.51.100.1:80 --cluster-cidr 10.1.0.0/16 --from 10.1.0.9
exit 0
says in the pod network
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
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, externalTrafficPolicy: Local, healthCheckNodePort: 32100, loadBalancerSourceRanges: [], ports: [{name: http, port: 80, nodePort: 30080}]}
status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
  - {addresses: [10.1.1.1], nodeName: node-b}
