package rulefile

import "github.com/weir-ratelimit/weir/pkg/descriptors"

// CompileByYAML is Compile without parsePlain.
func CompileByYAML(files []File) (*descriptors.Set, error) {
	b := descriptors.NewBuilder(descriptors.Process{})
	add(b, files, (*reader).readYAML)
	return b.Build()
}
