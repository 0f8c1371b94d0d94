package actions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// maxText is the longest text that Parse reads, in bytes.
const maxText = 1 << 20

// Parse reads and compiles a list of rate_limits, in JSON and in Envoy's words. The error names the path of what is
// wrong or not supported, such as rate_limits[2].actions[1].generic_key, also of a field that Envoy does not know.
func Parse(data []byte) (*Plan, error) {
	if len(data) > maxText {
		return nil, fmt.Errorf("rate_limits: must be at most %d bytes, got %d", maxText, len(data))
	}
	if kind := kindOf(data); kind != aList {
		return nil, fmt.Errorf("rate_limits: must be a list, got %s; begin each entry with a dash: - actions: [...]", kind)
	}
	var items []json.RawMessage
	if err := json.Unmarshal(data, &items); err != nil {
		return nil, fmt.Errorf("rate_limits: %w", err)
	}
	limits := make([]*routev3.RateLimit, len(items))
	for i, item := range items {
		limits[i] = new(routev3.RateLimit)
		at := fmt.Sprintf("rate_limits[%d]", i)
		if err := checkMessage(at, item, limits[i].ProtoReflect().Descriptor()); err != nil {
			return nil, err
		}
		if err := protojson.Unmarshal(item, limits[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", at, withoutPosition(err))
		}
	}
	return New(limits)
}

// The kinds of JSON, in words.
const (
	aMapping = "a mapping"
	aList    = "a list"
	aText    = "text"
	aScalar  = "a number or boolean"
	nothing  = "nothing"
)

// kindOf is the kind of a value.
func kindOf(value []byte) string {
	value = bytes.TrimLeft(value, " \t\r\n")
	switch {
	case len(value) == 0 || value[0] == 'n':
		return nothing
	case value[0] == '{':
		return aMapping
	case value[0] == '[':
		return aList
	case value[0] == '"':
		return aText
	}
	return aScalar
}

// checkMessage finds what protobuf would not accept, for an error that names its path.
func checkMessage(at string, value json.RawMessage, md protoreflect.MessageDescriptor) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(value, &members); err != nil || members == nil {
		if md.Fields().Len() == 0 {
			return fmt.Errorf("%s: must be a mapping without fields, got %s; write {}", at, kindOf(value))
		}
		return fmt.Errorf("%s: must be a mapping, got %s; its fields are %s", at, kindOf(value), fieldNames(md))
	}
	ofOneof := map[protoreflect.FullName]string{}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		at, value := at+"."+name, members[name]
		fd := fieldByName(md, name)
		if fd == nil {
			return fmt.Errorf("%s: Envoy has no such field; the fields here are %s", at, fieldNames(md))
		}
		if oneof := fd.ContainingOneof(); oneof != nil && kindOf(value) != nothing {
			if other, ok := ofOneof[oneof.FullName()]; ok {
				return fmt.Errorf("%s: only one of %s and %s may be set", at, other, name)
			}
			ofOneof[oneof.FullName()] = name
		}
		if err := checkField(at, name, value, fd); err != nil {
			return err
		}
	}
	return nil
}

func checkField(at, name string, value json.RawMessage, fd protoreflect.FieldDescriptor) error {
	switch {
	case fd.Message() == nil || fd.IsMap() || fd.Message().FullName().Parent() == "google.protobuf":
		return checkLeaf(at, name, value, fd)
	case fd.Message().Name() == "TypedExtensionConfig": // of Envoy or of xDS
		return refuse(at, "an extension of Envoy", "its code is in Envoy alone")
	case !fd.IsList():
		return checkMessage(at, value, fd.Message())
	}
	var items []json.RawMessage
	if err := json.Unmarshal(value, &items); err != nil || items == nil {
		return fmt.Errorf("%s: must be a list, got %s", at, kindOf(value))
	}
	for i, item := range items {
		if err := checkMessage(fmt.Sprintf("%s[%d]", at, i), item, fd.Message()); err != nil {
			return err
		}
	}
	return nil
}

// checkLeaf sets one field alone, and sees whether protobuf accepts it.
func checkLeaf(at, name string, value json.RawMessage, fd protoreflect.FieldDescriptor) error {
	if fd.Kind() == protoreflect.StringKind && !fd.IsList() && kindOf(value) == aScalar {
		return fmt.Errorf("%s: must be text, got %s; write it in quotes", at, value)
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(fd.ContainingMessage().FullName())
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	if err := protojson.Unmarshal(fmt.Appendf(nil, `{"%s": %s}`, name, value), mt.New().Interface()); err != nil {
		return fmt.Errorf("%s: %w", at, withoutPosition(err))
	}
	return nil
}

// withoutPosition returns an error of protojson without its position, which is one in text that Parse itself wrote.
func withoutPosition(err error) error {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
	if strings.HasPrefix(text, "(line ") {
		_, text, _ = strings.Cut(text, "): ")
	}
	return errors.New(ofField.ReplaceAllString(text, "$1"))
}

// ofField is how protojson names a field whose name the path has already.
var ofField = regexp.MustCompile(`^(invalid value for \w+) field \w+`)

func fieldByName(md protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := md.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return md.Fields().ByTextName(name)
}

func fieldNames(md protoreflect.MessageDescriptor) string {
	names := make([]string, md.Fields().Len())
	for i := range names {
		names[i] = md.Fields().Get(i).TextName()
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
