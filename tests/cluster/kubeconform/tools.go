//go:build tools

// Package tools names what is built here: kubeconform, as it is.
package tools

import _ "github.com/yannh/kubeconform/cmd/kubeconform"
