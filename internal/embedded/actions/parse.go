package actions

import (
	"encoding/json"
	"fmt"
	"regexp"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxText is the longest text that Parse reads, in bytes.
const maxText = 1 << 20

// position is what protojson says of where an error is: a column in text that its author has written in YAML.
var position = regexp.MustCompile(`^proto:[\s\x{a0}]|\(line [0-9:]+\):[\s\x{a0}]`)

// Parse reads and compiles a list of rate_limits, in JSON and in Envoy's words. The error names the entry that is wrong,
// such as rate_limits[2], and of what is not supported the path, such as rate_limits[2].actions[1].generic_key.
func Parse(data []byte) (*Plan, error) {
	if len(data) > maxText {
		return nil, fmt.Errorf("rate_limits: must be at most %d bytes, got %d", maxText, len(data))
	}
	var items []json.RawMessage
	if err := json.Unmarshal(data, &items); err != nil || items == nil {
		return nil, fmt.Errorf("rate_limits: must be a list; begin each entry with a dash: - actions: [...] (%w)", err)
	}
	p := new(Plan)
	for i, item := range items {
		at, rl := fmt.Sprintf("rate_limits[%d]", i), new(routev3.RateLimit)
		if err := protojson.Unmarshal(item, rl); err != nil {
			return nil, fmt.Errorf("%s: %s", at, position.ReplaceAllString(err.Error(), ""))
		}
		of := &p.onRequest
		if rl.GetApplyOnStreamDone() {
			of = &p.onStreamDone
		}
		l, err := of.compile(at, rl)
		if err != nil {
			return nil, err
		}
		of.limits = append(of.limits, l)
	}
	return p, nil
}
