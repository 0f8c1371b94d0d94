package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
)

// settings are the fields of a filter_config: of Envoy's filter envoy.filters.http.ratelimit, and the module's own.
type settings struct {
	Domain        string
	Flags         []string // flags of weir serve
	SourceCluster string
	Plan          *actions.Plan

	envoy         *ratelimitv3.RateLimit
	limitedStatus int32 // status of denials
	errorStatus   int32 // status of failures, with failure_mode_deny
	deniedHeaders []Header
}

// Route is the filter_config of a route. Its rate_limits replace those of the filter. It is immutable.
type Route struct {
	Domain        string
	SourceCluster string
	Plan          *actions.Plan
}

// instead has replacements for fields of Envoy's filter that the module does not support.
var instead = map[protoreflect.Name]string{
	"rate_limit_service":        "there is no service to call: write flags",
	"timeout":                   "write --store-timeout in flags",
	"failure_mode_deny_percent": "write failure_mode_deny, and on_store_failure in rules",
	"filter_enabled":            "the module does not read Envoy's runtime: switch the filter off in a route",
	"filter_enforced":           "the module does not read Envoy's runtime: write shadow_mode in rules",
	"stage":                     "every entry of rate_limits applies; write only those of the stage",
	"metadata_namespace":        "the namespace is envoy.filters.http.ratelimit",
	"enable_retry_after_header": "Weir sends the header itself: write --no-retry-after in flags to leave it out",
	"vh_rate_limits":            "a module gets only the most specific configuration: write all rate_limits there",
	"override_option":           "a module gets only the most specific configuration: write all rate_limits there",
}

// RequestType selects the requests that a filter limits. Requests with the header x-envoy-internal: true are internal.
type RequestType uint8

// The request types.
const (
	BothRequests RequestType = iota
	InternalRequests
	ExternalRequests
)

var requestTypes = map[string]RequestType{
	"": BothRequests, "both": BothRequests, "internal": InternalRequests, "external": ExternalRequests,
}

// parseFilter parses a filter_config.
func parseFilter(text []byte) (s *settings, err error) {
	s = &settings{envoy: &ratelimitv3.RateLimit{}}
	_, err = read(text, s.envoy, map[string]any{"flags": &s.Flags, "source_cluster": &s.SourceCluster})
	e := s.envoy
	if err == nil {
		s.Plan, err = newPlan(e, s.SourceCluster)
	}
	if err != nil {
		return nil, fmt.Errorf("filter_config: %w", err)
	}
	s.Domain = e.GetDomain()
	if s.limitedStatus = int32(e.GetRateLimitedStatus().GetCode()); s.limitedStatus < 400 {
		s.limitedStatus = 429 // as Envoy's filter does
	}
	if s.errorStatus = 500; e.GetStatusOnError() != nil {
		s.errorStatus = int32(e.GetStatusOnError().GetCode())
	}
	return s, s.check()
}

// check checks the values of fields, whose types are correct already.
func (s *settings) check() error {
	var errs []error
	wrong := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("filter_config: "+format, args...))
		}
	}
	wrong(s.Domain != "", "domain: must not be empty; write the domain of the rules")
	wrong(len(s.Flags) > 0, `flags: must not be empty; write flags of weir serve, such as ["--rules=/etc/weir/rules"]`)
	wrong(isStatus(s.errorStatus), "status_on_error.code: must be from 200 to 599, got %d", s.errorStatus)
	wrong(isStatus(s.limitedStatus), "rate_limited_status.code: must be from 200 to 599, got %d", s.limitedStatus)
	kind := s.envoy.GetRequestType()
	_, known := requestTypes[kind]
	wrong(known, "request_type: must be both, internal or external, got %q", kind)
	prefix := s.envoy.GetStatPrefix()
	wrong(statPrefix.MatchString(prefix), "stat_prefix: must be at most 64 letters, digits, _, - and ., got %q", prefix)
	for i, h := range s.envoy.GetResponseHeadersToAdd() {
		if err := checkHeader(h); err != nil {
			wrong(false, "response_headers_to_add[%d]%w", i, err)
		}
		s.deniedHeaders = append(s.deniedHeaders, Header{strings.ToLower(h.GetHeader().GetKey()), h.GetHeader().GetValue()})
	}
	wrong(len(s.deniedHeaders) <= maxDeniedHeaders, "response_headers_to_add: must be at most %d, got %d",
		maxDeniedHeaders, len(s.deniedHeaders))
	return errors.Join(errs...)
}

// statPrefix matches prefixes that can begin a name of Envoy's counters.
var statPrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)

// maxDeniedHeaders is the maximum number of the filter's headers, in addition to a rule's headers.
const maxDeniedHeaders = 16

// checkHeader checks a header. Its error begins with a dot and the field.
func checkHeader(h *corev3.HeaderValueOption) error {
	key, value := h.GetHeader().GetKey(), h.GetHeader().GetValue()
	switch plain := (&corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: key, Value: value}}); {
	case !httpguts.ValidHeaderFieldName(key):
		return fmt.Errorf(".header.key: must be the name of a header, got %q", key)
	case !httpguts.ValidHeaderFieldValue(value):
		return fmt.Errorf(".header.value: must be a value of a header, got %q", value)
	case strings.Contains(value, "%"):
		return fmt.Errorf(".header.value: commands and %%%% of Envoy's substitution format are not supported, got %q", value)
	case !proto.Equal(h, plain):
		return errors.New(": write header.key and header.value alone, because the header is always added")
	}
	return nil
}

func isStatus(code int32) bool { return code >= 200 && code <= 599 }

// ParseRoute parses the filter_config of a route. Its error has the path of the invalid field.
func ParseRoute(text []byte) (*Route, error) {
	r, envoy := &Route{}, &ratelimitv3.RateLimitPerRoute{}
	fields, err := read(text, envoy, map[string]any{"source_cluster": &r.SourceCluster})
	if _, ok := fields["rate_limits"]; err == nil && !ok {
		err = errors.New("rate_limits: is missing; write [] for a route without limits")
	}
	if err == nil {
		r.Domain = envoy.GetDomain()
		r.Plan, err = newPlan(envoy, r.SourceCluster)
	}
	if err != nil {
		return nil, fmt.Errorf("filter_config of a route: %w", err)
	}
	return r, nil
}

// newPlan compiles rate_limits. It returns an error if the module cannot read a part of the request that they need.
func newPlan(config actions.Config, sourceCluster string) (*actions.Plan, error) {
	plan, err := actions.New(config)
	if err != nil {
		return nil, err
	}
	if sourceCluster == "" && (plan.OnRequest().SourceCluster || plan.OnStreamDone().SourceCluster) {
		return nil, errors.New("rate_limits: source_cluster needs the name of this Envoy's cluster, which Envoy does not " +
			"pass to a module; write it as source_cluster beside rate_limits")
	}
	return plan, nil
}

// position matches the position in an error of protojson: a column of the JSON, while the author has written YAML.
var position = regexp.MustCompile(`^proto:[\s\x{a0}]|\(line [0-9:]+\):[\s\x{a0}]`)

// read parses a JSON object with fields of Envoy's message and the module's own fields. It returns Envoy's fields.
func read(text []byte, to proto.Message, own map[string]any) (fields map[string]json.RawMessage, err error) {
	if err = json.Unmarshal(text, &fields); err == nil && fields == nil {
		err = errors.New("it is null")
	}
	if err != nil {
		return nil, fmt.Errorf("must be a JSON object: %w", err)
	}
	for name, into := range own {
		if value, ok := fields[name]; ok {
			if err := json.Unmarshal(value, into); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			delete(fields, name)
		}
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	if err := protojson.Unmarshal(rest, to); err != nil {
		return nil, errors.New(position.ReplaceAllString(err.Error(), ""))
	}
	to.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if why, ok := instead[f.Name()]; ok {
			err = fmt.Errorf("%s is not supported in the module: %s", f.Name(), why)
		}
		return err == nil
	})
	return fields, err
}
