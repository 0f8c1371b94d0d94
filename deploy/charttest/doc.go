// Package charttest tests the Helm chart, the plain manifests and the kustomizations of deploy/. It is a module of its
// own, so that Weir does not depend on Helm's code.
package charttest
