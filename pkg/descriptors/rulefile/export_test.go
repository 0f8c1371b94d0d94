package rulefile

import "github.com/weir-ratelimit/weir/pkg/descriptors"

// CompileByYAML is Compile without parsePlain.
func CompileByYAML(files []File) (*descriptors.Set, error) {
	return compile(descriptors.Process{}, files, (*reader).readYAML)
}
