// CoreDNS with the plugins that a cluster's own names and the suite's tests of names need, and no others.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

// A request passes through plugins in this order, whatever their order in a Corefile is.
func init() {
	dnsserver.Directives = []string{
		"health", "ready", "log", "errors", "cache", "loadbalance", "hosts", "kubernetes",
	}
}

func main() {
	coremain.Run()
}
