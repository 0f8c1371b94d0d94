// Package istio runs Istio with the files of deploy/istio: see istio_test.go. make e2e-istio runs it.
package istio
