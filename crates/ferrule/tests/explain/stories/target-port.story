# targetPort names no port of the Pods: the slices have none of this name.
ask shop/web
exit 4
says no endpoint of shop/web has a port "http" of TCP; they have "metrics" 9090/TCP
says spec.ports[].targetPort names no port of the Pods
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
ports: [{name: metrics, port: 9090}]
endpoints:
  - {addresses: [10.1.0.1], nodeName: node-a}
