// Package deploy holds the manifests that weir init writes. The chart that those of Kubernetes are made from is in
// helm/weir.
package deploy

import (
	"embed"
	"io/fs"
)

//go:embed kubernetes/envoy.yaml kubernetes/weir.yaml kubernetes/weir-redis.yaml istio
var files embed.FS

// Kubernetes has the manifests of a Weir for all Envoys of a cluster, and of an Envoy to try it with.
var Kubernetes = sub("kubernetes")

// Istio has those of a Weir in Istio's mesh, and the patches that make its Envoys ask.
var Istio = sub("istio")

func sub(folder string) fs.FS {
	dir, err := fs.Sub(files, folder)
	if err != nil {
		panic(err) // of a folder that is embedded: never
	}
	return dir
}
