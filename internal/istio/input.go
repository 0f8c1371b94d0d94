package istio

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
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

var kinds = []string{
	kindPolicy, kindGateway, kindHTTPRoute, kindGRPCRoute, kindGrant, kindIstioGateway, kindVirtualService, kindService,
	kindShort,
}

// input has all documents of all files.
type input struct {
	Options

	objects map[string][]*object  // by kind; sorted by name and position, so that the order of files has no effect
	named   map[[2]string]*object // by kind and full name
	errs    descriptors.Errors
	report  []string // lines
}

// An object is a document of a file, or an item of a List.
type object struct {
	kind            string // KIND.GROUP, without the version
	namespace, name string // empty for the short form
	root            node
}

func (o *object) fullName() string { return o.namespace + "/" + o.name }

// find returns the object, or nil if it is not in the input.
func (in *input) find(kind, namespace, name string) *object {
	return in.named[[2]string{kind, namespace + "/" + name}]
}

// A node is a value in a file. An absent value has the position of the mapping, and no fields, items or text.
type node struct {
	*yaml.Node

	file string
}

func (n node) position() descriptors.Position {
	return descriptors.Position{File: n.file, Line: n.Line, Column: n.Column}
}

// exists reports whether the value is in the file and is not null.
func (n node) exists() bool { return n.Kind != 0 && n.Tag != "!!null" }

// get returns the value below the fields of nested mappings.
func (n node) get(path ...string) node {
	for _, name := range path {
		next := node{&yaml.Node{Line: n.Line, Column: n.Column}, n.file}
		n.each(func(key, value node) {
			if key.Value == name {
				next = value
			}
		})
		n = next
	}
	return n
}

// each calls f with each field of a mapping.
func (n node) each(f func(key, value node)) {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		f(node{n.Content[i], n.file}, node{n.Content[i+1], n.file})
	}
}

// items returns the items of a list.
func (n node) items() (all []node) {
	for i := 0; n.Kind == yaml.SequenceNode && i < len(n.Content); i++ {
		all = append(all, node{n.Content[i], n.file})
	}
	return all
}

// text returns the text of a scalar.
func (n node) text() string {
	if n.exists() && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

// labels returns a mapping of texts.
func (n node) labels() map[string]string {
	all := map[string]string{}
	n.each(func(key, value node) { all[key.Value] = value.text() })
	return all
}

// refuse reports an error at a value: what is wrong, and what to write instead.
func (in *input) refuse(at node, format string, args ...any) {
	in.errs = append(in.errs, &descriptors.Error{Position: at.position(), Msg: fmt.Sprintf(format, args...)})
}

// reportf adds a line to the report.
func (in *input) reportf(at node, format string, args ...any) {
	in.report = append(in.report, fmt.Sprintf("%s:%d: %s", at.file, at.Line, fmt.Sprintf(format, args...)))
}

// sortedErrors returns the errors by file and line, each once.
func (in *input) sortedErrors() descriptors.Errors {
	slices.SortFunc(in.errs, func(a, b *descriptors.Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Msg, b.Msg))
	})
	return slices.CompactFunc(in.errs, func(a, b *descriptors.Error) bool { return *a == *b })
}

// only refuses a value that is not a mapping, and its fields that are not among the names. what is the value's name in
// the message.
func (in *input) only(n node, what string, names ...string) {
	if n.exists() && n.Kind != yaml.MappingNode {
		in.refuse(n, "%s must be fields with values (name: value)", what)
	}
	n.each(func(key, value node) {
		if slices.Contains(names, key.Value) {
			if !value.exists() {
				in.refuse(key, "%s has no value; write one, or remove the field", key.Value)
			}
			return
		}
		hint := "allowed are " + strings.Join(names, ", ")
		if nearest := words.Nearest(key.Value, names); nearest != "" {
			hint = "did you mean " + nearest + "?"
		}
		in.refuse(key, "%s has no field %s; %s", what, words.Shown(key.Value), hint)
	})
}

// list returns the items of a field that must be a list; an absent field is an empty list.
func (in *input) list(n node, what string) []node {
	if n.exists() && n.Kind != yaml.SequenceNode {
		in.refuse(n, "%s must be a list: [a, b], or lines that start with -", what)
	}
	return n.items()
}

// read reads the documents of a file.
func (in *input) read(f File) {
	decoder := yaml.NewDecoder(bytes.NewReader(f.Data))
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			at := node{&yaml.Node{Line: 1, Column: 1}, f.Name}
			_, _ = fmt.Sscanf(err.Error(), "yaml: line %d:", &at.Line) // few errors have no line
			in.refuse(at, "this is not valid YAML (%v); check the indentation, quotes and brackets here and above", err)
			return
		}
		if root := (node{document.Content[0], f.Name}); root.exists() {
			in.checkNodes(root)
			in.add(root)
		}
	}
}

// add adds a document, or the items of a List, as kubectl get prints them.
func (in *input) add(root node) {
	group, _, ok := strings.Cut(root.get("apiVersion").text(), "/")
	o := &object{
		kind: root.get("kind").text(), namespace: root.get("metadata", "namespace").text(),
		name: root.get("metadata", "name").text(), root: root,
	}
	switch {
	case o.kind == "List":
		for _, item := range in.list(root.get("items"), "items") {
			in.add(item)
		}
		return
	case o.kind == "" && root.get("limits").Kind != 0:
		o.kind = kindShort
	case o.kind == "":
		in.refuse(root, "this is neither an object of Kubernetes nor limits; write kind, or gateway or service and limits")
		return
	case ok:
		o.kind += "." + group
	}
	if !slices.Contains(kinds, o.kind) {
		in.reportf(root, "%s %s is not read", o.kind, o.fullName())
		return
	}
	if o.kind != kindShort {
		if !fullNames.MatchString(o.fullName()) {
			in.refuse(root, "%s needs metadata with a name and a namespace as in Kubernetes, not %q and %q",
				root.get("kind").text(), o.name, o.namespace)
			return
		}
		if first := in.find(o.kind, o.namespace, o.name); first != nil {
			in.refuse(root, "%s %s is already at %s; remove one of the two", o.kind, o.fullName(), first.root.position())
			return
		}
	}
	in.objects[o.kind] = append(in.objects[o.kind], o)
	in.named[[2]string{o.kind, o.fullName()}] = o
}

// checkNodes refuses what would be read wrongly: aliases, merged fields, and a field that is given twice.
func (in *input) checkNodes(n node) {
	seen := map[string]bool{}
	n.each(func(key, _ node) {
		if key.Tag == "!!merge" || seen[key.Value] {
			in.refuse(key, "%s is given twice, or merges fields (<<); write each field once", words.Shown(key.Value))
		}
		seen[key.Value] = true
	})
	if n.Kind == yaml.AliasNode {
		in.refuse(n, "aliases (*name) are not supported; write the value")
		return
	}
	for _, child := range n.Content {
		in.checkNodes(node{child, n.file})
	}
}

// sort sorts the objects, so that the order of files and documents has no effect.
func (in *input) sort() {
	for _, all := range in.objects {
		slices.SortFunc(all, func(a, b *object) int {
			return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name),
				cmp.Compare(a.root.file, b.root.file), cmp.Compare(a.root.Line, b.root.Line))
		})
	}
}
