package embedded

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
)

// filterConfig is filter_config. Its words are those of Envoy's filter envoy.filters.http.ratelimit, and flags, which
// are those of weir serve.
type filterConfig struct {
	Flags                          []string        `json:"flags"`
	Domain                         string          `json:"domain"`
	RateLimits                     json.RawMessage `json:"rate_limits"`
	FailureModeDeny                bool            `json:"failure_mode_deny"`
	StatusOnError                  httpStatus      `json:"status_on_error"`
	RateLimitedStatus              httpStatus      `json:"rate_limited_status"`
	EnableXRateLimitHeaders        string          `json:"enable_x_ratelimit_headers"`
	DisableXEnvoyRateLimitedHeader bool            `json:"disable_x_envoy_ratelimited_header"`
	SourceCluster                  string          `json:"source_cluster"`
	RequestType                    string          `json:"request_type"`
	Stage                          uint32          `json:"stage"`
	StatPrefix                     string          `json:"stat_prefix"`
	ResourceExhausted              bool            `json:"rate_limited_as_resource_exhausted"`
	ResponseHeadersToAdd           []headerOption  `json:"response_headers_to_add"`
}

// headerOption is envoy.config.core.v3.HeaderValueOption.
type headerOption struct {
	Header struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	} `json:"header"`
	AppendAction string `json:"append_action"`
}

// instead says what to write for words of Envoy's filter that the module does not have.
var instead = map[string]string{
	"rate_limit_service":        "there is no service to call: write flags",
	"timeout":                   "write --store-timeout in flags",
	"failure_mode_deny_percent": "write failure_mode_deny, and on_store_failure in rules",
	"filter_enabled":            "the module does not read Envoy's runtime: switch the filter off in a route",
	"filter_enforced":           "the module does not read Envoy's runtime: write shadow_mode in rules",
	"disable_key":               "the module does not read Envoy's runtime: switch the filter off in a route",
	"vh_rate_limits":            "Envoy gives a module the most specific configuration alone: write all rate_limits there",
	"override_option":           "Envoy gives a module the most specific configuration alone: write all rate_limits there",
}

// RequestType says which requests a filter limits: those with the header x-envoy-internal: true are internal.
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

// routeConfig is filter_config of a route.
type routeConfig struct {
	Domain        string          `json:"domain"`
	RateLimits    json.RawMessage `json:"rate_limits"`
	SourceCluster string          `json:"source_cluster"`
}

// httpStatus is envoy.type.v3.HttpStatus.
type httpStatus struct {
	Code uint32 `json:"code"`
}

// The values of enable_x_ratelimit_headers.
const (
	xRateLimitOff     = "OFF"
	xRateLimitDraft03 = "DRAFT_VERSION_03"
)

// settings are what a filter_config says.
type settings struct {
	filterConfig

	Plan          *actions.Plan
	deniedHeaders []Header
}

// parseFilter reads filter_config.
func parseFilter(text []byte) (*settings, error) {
	s := &settings{filterConfig: filterConfig{StatusOnError: httpStatus{500}, RateLimitedStatus: httpStatus{429}}}
	if err := decodeStrictly(text, &s.filterConfig); err != nil {
		return nil, fmt.Errorf("filter_config: %w", err)
	}
	var err error
	if s.Plan, err = parsePlan(s.RateLimits, s.SourceCluster); err != nil {
		return nil, fmt.Errorf("filter_config: %w", err)
	}
	if s.RateLimitedStatus.Code < 400 { // Envoy's filter answers 429, too
		s.RateLimitedStatus.Code = 429
	}
	var errs []error
	wrong := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("filter_config: "+format, args...))
		}
	}
	wrong(s.Domain != "", "domain: must not be empty; write the domain of the rules")
	wrong(len(s.Flags) > 0, `flags: must not be empty; write flags of weir serve, such as ["--rules=/etc/weir/rules"]`)
	wrong(isStatus(s.StatusOnError), "status_on_error.code: must be from 200 to 599, got %d", s.StatusOnError.Code)
	wrong(isStatus(s.RateLimitedStatus), "rate_limited_status.code: must be from 200 to 599, got %d",
		s.RateLimitedStatus.Code)
	_, known := requestTypes[s.RequestType]
	wrong(known, "request_type: must be both, internal or external, got %q", s.RequestType)
	wrong(s.Stage == 0, "stage: must be 0, got %d: every entry of rate_limits applies; write only those of the stage",
		s.Stage)
	wrong(statPrefix.MatchString(s.StatPrefix), "stat_prefix: must be at most 64 letters, digits, _, - and ., got %q",
		s.StatPrefix)
	for i, h := range s.ResponseHeadersToAdd {
		if err := h.check(); err != nil {
			wrong(false, "response_headers_to_add[%d]%w", i, err)
		}
		s.deniedHeaders = append(s.deniedHeaders, Header{strings.ToLower(h.Header.Key), h.Header.Value})
	}
	wrong(len(s.deniedHeaders) <= maxDeniedHeaders, "response_headers_to_add: must be at most %d, got %d",
		maxDeniedHeaders, len(s.deniedHeaders))
	switch s.EnableXRateLimitHeaders {
	case "", xRateLimitOff, xRateLimitDraft03:
	default:
		wrong(false, "enable_x_ratelimit_headers: must be %s or %s, got %q", xRateLimitOff, xRateLimitDraft03,
			s.EnableXRateLimitHeaders)
	}
	return s, errors.Join(errs...)
}

// statPrefix bounds what becomes a name of Envoy's counters.
var statPrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)

// maxDeniedHeaders leaves room for a rule's own headers.
const maxDeniedHeaders = 16

// check says what is wrong with the header. The error begins with the field, after a dot.
func (h *headerOption) check() error {
	switch {
	case !httpguts.ValidHeaderFieldName(h.Header.Key):
		return fmt.Errorf(".header.key: must be the name of a header, got %q", h.Header.Key)
	case !httpguts.ValidHeaderFieldValue(h.Header.Value):
		return fmt.Errorf(".header.value: must be a value of a header, got %q", h.Header.Value)
	case strings.Contains(h.Header.Value, "%"):
		return fmt.Errorf(".header.value: commands and %%%% of Envoy's substitution format are not supported, got %q",
			h.Header.Value)
	case h.AppendAction != "" && h.AppendAction != "APPEND_IF_EXISTS_OR_ADD":
		return fmt.Errorf(".append_action: must be APPEND_IF_EXISTS_OR_ADD, or left out; got %q", h.AppendAction)
	}
	return nil
}

func isStatus(s httpStatus) bool { return s.Code >= 200 && s.Code <= 599 }

// ParseRoute reads the filter_config of a route. The error says what is wrong, and names its path.
func ParseRoute(text []byte) (*Route, error) {
	r := &Route{}
	err := decodeStrictly(text, &r.routeConfig)
	if err == nil && r.RateLimits == nil {
		err = errors.New("rate_limits: must be there; write [] for a route without limits")
	}
	if err == nil {
		r.Plan, err = parsePlan(r.RateLimits, r.SourceCluster)
	}
	if err != nil {
		return nil, fmt.Errorf("filter_config of a route: %w", err)
	}
	return r, nil
}

// parsePlan compiles rate_limits, and refuses what the module cannot read of a request.
func parsePlan(text json.RawMessage, sourceCluster string) (*actions.Plan, error) {
	if text == nil {
		text = json.RawMessage("[]")
	}
	plan, err := actions.Parse(text)
	if err != nil {
		return nil, err
	}
	for _, phase := range []*actions.Phase{plan.OnRequest(), plan.OnStreamDone()} {
		if err := checkReads(phase, sourceCluster); err != nil {
			return nil, fmt.Errorf("rate_limits: %w", err)
		}
	}
	return plan, nil
}

// checkReads refuses what the module cannot read.
func checkReads(phase *actions.Phase, sourceCluster string) error {
	for _, key := range phase.Metadata {
		if len(key.Path) == 1 {
			continue
		}
		command := "DYNAMIC_METADATA(" + key.Namespace
		if key.Source == actions.RouteMetadata {
			command = "METADATA(ROUTE:" + key.Namespace
		}
		return fmt.Errorf("metadata %s, key %s: Envoy shows a module only values directly below a namespace; have the "+
			"filter envoy.filters.http.header_mutation before this one write %%%s:%s)%% into a request header, and use that",
			key.Namespace, strings.Join(key.Path, ":"), command, strings.Join(key.Path, ":"))
	}
	if phase.SourceCluster && sourceCluster == "" {
		return errors.New("source_cluster needs the name of this Envoy's cluster, which Envoy does not tell a module; " +
			"write it as source_cluster beside rate_limits")
	}
	return nil
}

// decodeStrictly reads one JSON object and refuses fields that it does not have.
func decodeStrictly(text []byte, to any) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return fmt.Errorf("is empty; its fields are %s", fields(to))
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if err == nil && d.Decode(&struct{}{}) != io.EOF {
		return errors.New("has more than one JSON object")
	}
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &kind):
		return fmt.Errorf("%s: must be of type %s, got %s", kind.Field, kind.Type, kind.Value)
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		name := strings.TrimPrefix(err.Error(), "json: unknown field ")
		if what, ok := instead[strings.Trim(name, `"`)]; ok {
			return fmt.Errorf("%s is not supported in the module: %s", name, what)
		}
		return fmt.Errorf("%s is no field; the fields are %s", name, fields(to))
	default:
		return fmt.Errorf("must be a JSON object: %w", err)
	}
}

// fields are the names of the fields of a struct in JSON.
func fields(of any) string {
	t := reflect.TypeOf(of).Elem()
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = t.Field(i).Tag.Get("json")
	}
	return strings.Join(names, ", ")
}
