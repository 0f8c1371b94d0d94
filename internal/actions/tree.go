package actions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// tree is what a text in YAML or JSON says, in the order in which it says it.
type tree struct {
	kind    treeKind
	members []member
	items   []*tree
	scalar  []byte // in JSON
}

type member struct {
	name  string
	value *tree
}

type treeKind string

const (
	treeObject treeKind = "a mapping"
	treeList   treeKind = "a list"
	treeText   treeKind = "text"
	treeOther  treeKind = "a number or boolean"
	treeNull   treeKind = "nothing"
)

// Bounds of a tree: aliases of YAML could make a short text a large one.
const (
	maxDepth = 32
	maxNodes = 1 << 16
)

var (
	errTooDeep = fmt.Errorf("is nested deeper than %d levels", maxDepth)
	errTooMany = fmt.Errorf("has more than %d values", maxNodes)
)

func parseTree(data []byte) (*tree, error) {
	b := treeBuilder{}
	if json.Valid(data) {
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		return b.fromJSON(d, 0)
	}
	var doc yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return &tree{kind: treeNull}, nil
	} else if err != nil {
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("must be one document; take away what follows ---")
	}
	return b.fromYAML(&doc, 0)
}

type treeBuilder struct{ nodes int }

func (b *treeBuilder) add(depth int) error {
	if b.nodes++; b.nodes > maxNodes {
		return errTooMany
	}
	if depth > maxDepth {
		return errTooDeep
	}
	return nil
}

// addMember adds one of an object's members.
func (t *tree) addMember(name string, value *tree) error {
	for _, m := range t.members {
		if m.name == name {
			return fmt.Errorf("%q is written twice in one mapping", name)
		}
	}
	t.members = append(t.members, member{name, value})
	return nil
}

func (b *treeBuilder) fromJSON(d *json.Decoder, depth int) (*tree, error) {
	if err := b.add(depth); err != nil {
		return nil, err
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return scalarTree(token)
	}
	t := &tree{kind: treeObject}
	if delim == '[' {
		t.kind = treeList
	}
	for d.More() {
		var name string
		if t.kind == treeObject {
			token, err := d.Token()
			if err != nil {
				return nil, err
			}
			name, _ = token.(string)
		}
		value, err := b.fromJSON(d, depth+1)
		if err != nil {
			return nil, err
		}
		if t.kind == treeList {
			t.items = append(t.items, value)
		} else if err := t.addMember(name, value); err != nil {
			return nil, err
		}
	}
	_, err = d.Token() // the closing bracket
	return t, err
}

func (b *treeBuilder) fromYAML(n *yaml.Node, depth int) (*tree, error) {
	if err := b.add(depth); err != nil {
		return nil, err
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return b.fromYAML(n.Content[0], depth)
	case yaml.AliasNode:
		return b.fromYAML(n.Alias, depth+1)
	case yaml.SequenceNode:
		t := &tree{kind: treeList}
		for _, item := range n.Content {
			value, err := b.fromYAML(item, depth+1)
			if err != nil {
				return nil, err
			}
			t.items = append(t.items, value)
		}
		return t, nil
	case yaml.MappingNode:
		t := &tree{kind: treeObject}
		for i := 0; i+1 < len(n.Content); i += 2 {
			value, err := b.fromYAML(n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			if err := t.addMember(n.Content[i].Value, value); err != nil {
				return nil, fmt.Errorf("line %d: %w", n.Content[i].Line, err)
			}
		}
		return t, nil
	default:
		var value any
		if n.ShortTag() == "!!timestamp" || n.ShortTag() == "!!binary" {
			value = n.Value // Envoy knows neither
		} else if err := n.Decode(&value); err != nil {
			return nil, fmt.Errorf("line %d: %w", n.Line, err)
		}
		t, err := scalarTree(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n.Line, err)
		}
		return t, nil
	}
}

func scalarTree(value any) (*tree, error) {
	t := &tree{kind: treeOther}
	switch value.(type) {
	case nil:
		t.kind = treeNull
	case string:
		t.kind = treeText
	}
	var err error
	if t.scalar, err = json.Marshal(value); err != nil {
		return nil, fmt.Errorf("%v is not a value that JSON has", value)
	}
	return t, nil
}

// json is the tree as JSON.
func (t *tree) json() []byte { return t.appendJSON(nil) }

func (t *tree) appendJSON(b []byte) []byte {
	switch t.kind {
	case treeObject:
		b = append(b, '{')
		for i, m := range t.members {
			if i > 0 {
				b = append(b, ',')
			}
			name, _ := json.Marshal(m.name) // text always has a form in JSON
			b = append(append(b, name...), ':')
			b = m.value.appendJSON(b)
		}
		return append(b, '}')
	case treeList:
		b = append(b, '[')
		for i, item := range t.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.appendJSON(b)
		}
		return append(b, ']')
	default:
		return append(b, t.scalar...)
	}
}
