//go:build tools

// Package tools names what is built here: containerd 1.7, as it is. Its shim is Debian's.
package tools

import (
	_ "github.com/containerd/containerd/cmd/containerd"
)
