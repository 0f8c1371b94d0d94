// Package ratelimitenv translates the environment of an envoyproxy/ratelimit process to flags of weir serve.
package ratelimitenv

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Setting is a flag of weir serve, or a variable of OpenTelemetry.
type Setting struct {
	// Name is the name of the flag, without dashes, or of the variable.
	Name, Value string
	// Shown is Value with placeholders for secrets.
	Shown string
	// From are the set variables that determine Value. If it is empty, Value is a default of this mode.
	From []string
}

// Settings is a translated environment.
type Settings struct {
	Flags []Setting
	// OTel are variables of OpenTelemetry that have no flag.
	OTel []Setting
	// Env is the environment including OTel.
	Env map[string]string
	// Remarks are sentences about variables that have no effect in Weir.
	Remarks []string
}

// Read translates an environment, in the form of os.Environ. Its error has a line for each variable that is malformed,
// or whose function Weir does not have. The error contains no secrets.
func Read(environ []string) (*Settings, error) {
	r := reader{env: map[string]string{}}
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); value != "" {
			r.env[name] = value
		}
	}
	r.listen()
	r.rules()
	r.store()
	r.decisions()
	r.metrics()
	r.tracing()
	r.fixed()
	r.out.Env = r.env
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	return &r.out, nil
}

// defaults are the defaults of envoyproxy/ratelimit. Other variables are empty, false or 0 by default.
// docs/migrating/envoyproxy-ratelimit.md lists all variables.
var defaults = map[string]string{
	"HOST":                        "0.0.0.0",
	"PORT":                        "8080",
	"DEBUG_HOST":                  "0.0.0.0",
	"DEBUG_PORT":                  "6070",
	"GRPC_HOST":                   "0.0.0.0",
	"GRPC_PORT":                   "8081",
	"GRPC_MAX_CONNECTION_AGE":     "24h",
	"LOG_LEVEL":                   "WARN",
	"LOG_FORMAT":                  "text",
	"CONFIG_TYPE":                 "FILE",
	"CONFIG_GRPC_XDS_NODE_ID":     "default",
	"CONFIG_GRPC_XDS_SERVER_URL":  "localhost:18000",
	"RUNTIME_ROOT":                "/srv/runtime_data/current",
	"RUNTIME_APPDIRECTORY":        "config",
	"RUNTIME_WATCH_ROOT":          "true",
	"BACKEND_TYPE":                "redis",
	"REDIS_SOCKET_TYPE":           "unix",
	"REDIS_URL":                   "/var/run/nutcracker/ratelimit.sock",
	"REDIS_TYPE":                  "SINGLE",
	"REDIS_PERSECOND_SOCKET_TYPE": "unix",
	"REDIS_PERSECOND_TYPE":        "SINGLE",
	"REDIS_PERSECOND_URL":         "/var/run/nutcracker/ratelimitpersecond.sock",
	"USE_STATSD":                  "true",
	"STATSD_HOST":                 "localhost",
	"STATSD_PORT":                 "8125",
	"STATSD_PROTOCOL":             "tcp",
	"STATS_FLUSH_INTERVAL":        "10s",
	"PROMETHEUS_ADDR":             ":9090",
	"TRACING_EXPORTER_PROTOCOL":   "http",
	"TRACING_SERVICE_NAME":        "RateLimit",
	"TRACING_SAMPLING_RATE":       "1",
}

// reader translates one environment. An empty variable counts as not set.
type reader struct {
	env  map[string]string
	out  Settings
	errs []error
}

func (r *reader) fail(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
}

func (r *reader) remark(name, format string, args ...any) {
	r.out.Remarks = append(r.out.Remarks, name+": "+fmt.Sprintf(format, args...))
}

// isSet reports whether the variable is set.
func (r *reader) isSet(name string) bool { return r.env[name] != "" }

// get returns the variable's value, or its default.
func (r *reader) get(name string) string { return cmp.Or(r.env[name], defaults[name]) }

// read returns the variable's value, parsed. If parse fails, read records one error and returns the default.
func read[T any](r *reader, name, form string, parse func(string) (T, error)) T {
	v, err := parse(r.get(name))
	if err != nil {
		r.fail(name, "must be %s, got %q", form, r.get(name))
		delete(r.env, name)
		v, _ = parse(r.get(name))
	}
	return v
}

func (r *reader) is(name string) bool {
	return read(r, name, "true or false", func(text string) (bool, error) {
		return strconv.ParseBool(cmp.Or(text, "false"))
	})
}

func (r *reader) time(name string) time.Duration {
	return read(r, name, "a time such as 10s or 24h", time.ParseDuration)
}

// number returns a whole number, or 0 if the variable is not set.
func (r *reader) number(name string) int64 {
	return read(r, name, "a whole number", func(text string) (int64, error) {
		return strconv.ParseInt(cmp.Or(text, "0"), 0, 64)
	})
}

// port returns a port number.
func (r *reader) port(name string) string {
	n := read(r, name, "a port, from 1 to 65535 (Kubernetes sets tcp://... for a Service of that "+
		"name, unless the pod has enableServiceLinks: false)", func(text string) (uint64, error) {
		n, err := strconv.ParseUint(text, 0, 16) // base 0 accepts hexadecimal numbers
		if n == 0 {
			err = strconv.ErrRange
		}
		return n, err
	})
	return strconv.FormatUint(n, 10)
}

// pairs parses key:value,key:value; = may replace the colon. Errors do not quote a value, which may be a secret.
func (r *reader) pairs(name string) (all [][2]string) {
	if !r.isSet(name) {
		return nil
	}
	for pair := range strings.SplitSeq(r.get(name), ",") {
		i := strings.IndexAny(pair, ":=")
		if i <= 0 {
			r.fail(name, "must be key:value,key:value")
			return nil
		}
		all = append(all, [2]string{strings.TrimSpace(pair[:i]), strings.TrimSpace(pair[i+1:])})
	}
	return all
}

// flag adds a flag whose value comes from the variables from.
func (r *reader) flag(name, value string, from ...string) { r.secret(name, value, value, from...) }

// secret is flag for a value that is shown as another text.
func (r *reader) secret(name, value, shown string, from ...string) {
	r.out.Flags = append(r.out.Flags, r.setting(name, value, shown, from))
}

func (r *reader) setting(name, value, shown string, from []string) Setting {
	s := Setting{Name: name, Value: value, Shown: shown}
	for _, v := range from {
		if r.isSet(v) {
			s.From = append(s.From, v)
		}
	}
	return s
}

// copied adds a flag with the variable's value if the variable is set.
func (r *reader) copied(flag, from string) {
	if r.isSet(from) {
		r.flag(flag, r.get(from), from)
	}
}

// on adds a boolean flag if the variable is true.
func (r *reader) on(flag, from string) {
	if r.is(from) {
		r.flag(flag, "true", from)
	}
}

// otel adds a variable of OpenTelemetry unless it is set already.
func (r *reader) otel(name, value string, from ...string) {
	if !r.isSet(name) {
		r.out.OTel = append(r.out.OTel, r.setting(name, value, value, from))
		r.env[name] = value
	}
}

// escaped escapes sep in the value of a flag that accepts several values separated by sep.
func escaped(value, sep string) string { return strings.ReplaceAll(value, sep, `\`+sep) }
