//go:build tools

package main

// Built from this module, too: what they share with Kubernetes is compiled once.
import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
