# The client asks an address of the node on which NodePorts do not answer.
ask 192.0.2.11:30080 --nodeport-addresses 10.0.0.0/8
exit 3
says NodePort 30080 of shop/web:http does not answer on 192.0.2.11: nodePortAddresses (--nodeport-addresses) has 10.0.0.0/8 only
ask 192.0.2.11:30080
exit 0
says NodePort 30080/TCP of shop/web:http leads to
ask nodeport:30080/tcp
exit 0
says NodePort 30080/TCP of shop/web:http leads to
-- cluster.yaml --
apiVersion: v1
kind: Node
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.11}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, ports: [{name: http, port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
  - {addresses: [10.1.0.1], nodeName: node-a}
