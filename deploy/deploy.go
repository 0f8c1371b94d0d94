// Package deploy holds the manifests that weir init writes. The chart that those of Kubernetes are made from is in
// helm/weir.
package deploy

import (
	"embed"
	"io/fs"
)

//go:embed kubernetes/README.md kubernetes/envoy.yaml kubernetes/weir.yaml kubernetes/weir-redis.yaml istio
var files embed.FS

// Folders of manifests: kubernetes has a Weir for all Envoys of a cluster, and an Envoy to try it with; istio has a
// Weir in Istio's mesh, and the patches that make its Envoys ask.
const (
	Kubernetes = "kubernetes"
	Istio      = "istio"
)

// Files returns the manifests of a folder.
func Files(folder string) (fs.FS, error) { return fs.Sub(files, folder) }
