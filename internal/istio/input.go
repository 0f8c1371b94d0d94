package istio

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
)

// The kinds of objects that the generator reads, with their API groups.
const (
	kindPolicy         = "BackendTrafficPolicy.gateway.envoyproxy.io"
	kindGateway        = "Gateway.gateway.networking.k8s.io"
	kindHTTPRoute      = "HTTPRoute.gateway.networking.k8s.io"
	kindGRPCRoute      = "GRPCRoute.gateway.networking.k8s.io"
	kindGrant          = "ReferenceGrant.gateway.networking.k8s.io"
	kindIstioGateway   = "Gateway.networking.istio.io"
	kindVirtualService = "VirtualService.networking.istio.io"
	kindService        = "Service"
	kindShort          = "limits" // a document of the short form
)

var (
	targetKinds = []string{kindGateway, kindHTTPRoute, kindGRPCRoute, kindIstioGateway, kindVirtualService} // of policies
	kinds       = append([]string{kindPolicy, kindGrant, kindService}, targetKinds...)
)

// input has all documents of all files, and what the generator finds in them.
type input struct {
	Options

	schemas   map[string]*schema   // of a document of the short form (limits), a policy and the full name of an object
	objects   map[string][]*object // by kind, in the order of files and documents
	named     map[string]*object   // by object.id
	workloads map[string]*workload // by workload.fullName
	rules     map[string]fields    // of the limits of the workloads, by name
	errs      descriptors.Errors
	report    descriptors.Errors // remarks
}

// An object is a document of a file, or an item of a List.
type object struct {
	kind            string // KIND.GROUP, without the version
	namespace, name string // empty for the short form
	root            node
}

func (o *object) fullName() string { return o.namespace + "/" + o.name }

// id returns a text for a section of the object, or for the whole object if the section is empty.
func (o *object) id(section string) string {
	return strings.TrimSpace(o.kind + " " + o.fullName() + " " + section)
}

// find returns the object, or nil if it is not in the input.
func (in *input) find(kind, namespace, name string) *object {
	return in.named[(&object{kind: kind, namespace: namespace, name: name}).id("")]
}

// A node is a value in a file. An absent value has the position of the mapping, and no fields, items or text.
type node struct {
	*yaml.Node

	in   *input
	file string
}

func (n node) position() descriptors.Position {
	return descriptors.Position{File: n.file, Line: n.Line, Column: n.Column}
}

// exists reports whether the value is in the file and is not null.
func (n node) exists() bool { return n.Kind != 0 && n.Tag != "!!null" }

// fields returns the keys and values of a mapping.
func (n node) fields() iter.Seq2[node, node] {
	return func(yield func(key, value node) bool) {
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if !yield(node{n.Content[i], n.in, n.file}, node{n.Content[i+1], n.in, n.file}) {
				return
			}
		}
	}
}

// get returns the value below the fields of nested mappings.
func (n node) get(path ...string) node {
	for _, name := range path {
		next := node{&yaml.Node{Line: n.Line, Column: n.Column}, n.in, n.file}
		for key, value := range n.fields() {
			if key.Value == name {
				next = value
			}
		}
		n = next
	}
	return n
}

// text returns the text of the scalar below the fields, or "".
func (n node) text(path ...string) string {
	if n = n.get(path...); n.exists() && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

// count returns a number of requests or hits, whose digits the schema has checked.
func (n node) count(digits string) uint64 {
	number, err := strconv.ParseUint(digits, 10, 32)
	if errors.Is(err, strconv.ErrRange) {
		n.refuse("%s is above 4294967295; write a smaller number, or a shorter unit", digits)
	}
	return number
}

// items returns the items of the lists in the fields. A field with another value is one item.
func (n node) items(fields ...string) (all []node) {
	for _, name := range fields {
		switch list := n.get(name); {
		case list.Kind == yaml.SequenceNode:
			for _, item := range list.Content {
				all = append(all, node{item, n.in, n.file})
			}
		case list.exists():
			all = append(all, list)
		}
	}
	return all
}

// texts returns the texts of the items that are not empty, sorted, each once.
func (n node) texts(fields ...string) (all []string) {
	for _, item := range n.items(fields...) {
		if text := item.text(); text != "" {
			all = append(all, text)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// labels returns the texts of a mapping by key.
func (n node) labels(path ...string) map[string]string {
	all := map[string]string{}
	for key, value := range n.get(path...).fields() {
		all[key.Value] = value.text()
	}
	return all
}

// refuse reports an error at a value: what is wrong, and what to write instead.
func (n node) refuse(format string, args ...any) {
	n.in.errs = append(n.in.errs, &descriptors.Error{Position: n.position(), Msg: fmt.Sprintf(format, args...)})
}

// reportf adds a remark about a value to the report.
func (n node) reportf(format string, args ...any) {
	n.in.report = append(n.in.report, &descriptors.Error{Position: n.position(), Msg: fmt.Sprintf(format, args...)})
}

// sorted returns errors or remarks by position, each once.
func sorted(all descriptors.Errors) descriptors.Errors {
	slices.SortFunc(all, func(a, b *descriptors.Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Msg, b.Msg))
	})
	return slices.CompactFunc(all, func(a, b *descriptors.Error) bool { return *a == *b })
}

// read reads the documents of the files, whose order has no effect.
func (in *input) read(files []File) {
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b File) int { return cmp.Compare(a.Name, b.Name) }) {
		for decoder, more := yaml.NewDecoder(bytes.NewReader(f.Data)), true; more; {
			var document yaml.Node
			switch err := decoder.Decode(&document); {
			case errors.Is(err, io.EOF):
				more = false
			case err != nil:
				at := node{&yaml.Node{Line: 1, Column: 1}, in, f.Name}
				_, _ = fmt.Sscanf(err.Error(), "yaml: line %d:", &at.Line) // few errors have no line
				at.refuse("this is not valid YAML (%v); check the indentation, quotes and brackets here and above", err)
				more = false
			default:
				root := node{document.Content[0], in, f.Name}
				root.checkKeys()
				in.add(root)
			}
		}
	}
}

// checkKeys refuses what would be read wrongly: aliases, merged fields, and a field that is given twice.
func (n node) checkKeys() {
	seen := map[string]bool{}
	for key := range n.fields() {
		if key.Tag == "!!merge" || seen[key.Value] {
			key.refuse("%s is given twice, or merges fields (<<); write each field once", words.Shown(key.Value))
		}
		seen[key.Value] = true
	}
	if n.Kind == yaml.AliasNode {
		n.refuse("aliases (*name) are not supported; write the value")
	}
	for _, child := range n.Content {
		node{child, n.in, n.file}.checkKeys()
	}
}

// add adds a document, or the items of a List, as kubectl get prints them.
func (in *input) add(root node) {
	group, _, hasGroup := strings.Cut(root.text("apiVersion"), "/")
	o := &object{root.text("kind"), root.text("metadata", "namespace"), root.text("metadata", "name"), root}
	switch {
	case !root.exists():
	case o.kind == "List" && root.get("items").Kind != yaml.SequenceNode:
		root.get("items").refuse("items must be a list: [a, b], or lines that start with -")
	case o.kind == "List":
		for _, item := range root.items("items") {
			in.add(item)
		}
	case o.kind == "" && root.get("limits").Kind != 0:
		in.objects[kindShort] = append(in.objects[kindShort], o)
	case o.kind == "":
		root.refuse("this is neither an object of Kubernetes nor limits; write kind, or gateway or service and limits")
	case hasGroup:
		o.kind += "." + group
		fallthrough
	default:
		in.addObject(o)
	}
}

func (in *input) addObject(o *object) {
	first := in.named[o.id("")]
	switch {
	case !slices.Contains(kinds, o.kind):
		o.root.reportf("%s %s is not read", o.kind, o.fullName())
	case !in.schemas["object"].Text.MatchString(o.fullName()):
		o.root.refuse("%s needs metadata with a name and a namespace as in Kubernetes, not %q and %q",
			o.root.text("kind"), o.name, o.namespace)
	case first != nil:
		o.root.refuse("%s %s is already at %s; remove one of the two", o.kind, o.fullName(), first.root.position())
	default:
		in.objects[o.kind] = append(in.objects[o.kind], o)
		in.named[o.id("")] = o
	}
}
