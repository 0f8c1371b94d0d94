package rulefile

import (
	"bytes"
	"errors"
	"strconv"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// SetChunkSize sets how many bytes of a list of descriptors are decoded at once.
func SetChunkSize(size int) { chunkSize = size }

var ruleSchema = sync.OnceValue(func() *jsonschema.Schema {
	doc, _ := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema()))
	c := jsonschema.NewCompiler()
	_ = c.AddResource(SchemaURL, doc)
	return c.MustCompile(SchemaURL) // panics if the schema is invalid
})

// SchemaErrors returns the lines of a file in which the JSON Schema finds an error.
func SchemaErrors(f File) map[int]string {
	r := newReader(f, descriptors.NewBuilder(descriptors.Process{}))
	roots, _ := r.parse(f.Data)
	found := map[int]string{}
	for _, root := range roots {
		if e := (*jsonschema.ValidationError)(nil); !isNull(root) && errors.As(ruleSchema().Validate(r.value(root)), &e) {
			mark(found, root, e)
		}
	}
	return found
}

// mark adds the lines of wrong values, and of all fields of a mapping that is wrong as a whole.
func mark(found map[int]string, n *yaml.Node, e *jsonschema.ValidationError) {
	for _, cause := range e.Causes {
		mark(found, n, cause)
	}
	if len(e.Causes) > 0 {
		return
	}
	for _, name := range e.InstanceLocation {
		n = resolve(n)
		for i, child := range n.Content {
			if n.Kind == yaml.SequenceNode && strconv.Itoa(i) == name || i%2 == 1 && n.Content[i-1].Value == name {
				n = child
				break
			}
		}
	}
	for _, value := range append(n.Content, n) {
		found[value.Line] = e.Error()
	}
}
