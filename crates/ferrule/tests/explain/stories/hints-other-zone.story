# An endpoint is left out because it is hinted for another zone.
ask shop/web
exit 0
says one endpoint, of 2 that are listed: those hinted for zone a (hints.forZones)
ask shop/web -o json
exit 0
says "version": "v1"
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
  - {addresses: [10.1.0.1], hints: {forZones: [{name: a}]}}
  - {addresses: [10.1.0.2], hints: {forZones: [{name: b}]}}
