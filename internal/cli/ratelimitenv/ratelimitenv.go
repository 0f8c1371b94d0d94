// Package ratelimitenv reads the environment of a process of envoyproxy/ratelimit and says by which flags weir serve
// does the same.
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
	// Name names a flag, without dashes, or a variable.
	Name, Value string
	// Shown is Value with placeholders for secrets.
	Shown string
	// From are the variables that are set and that it comes from. None: it is always so in this mode, or by default.
	From []string
}

// Settings is what an environment means.
type Settings struct {
	Flags []Setting
	// OTel are variables of OpenTelemetry, which has no flags for them.
	OTel []Setting
	// Env is the environment, with OTel.
	Env map[string]string
	// Remarks are about variables that have no effect here, a line each.
	Remarks []string
}

// Read translates an environment, as os.Environ returns it. Its error has a line for each variable that is ill-formed,
// or that asks for what Weir cannot do; it quotes no secret.
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

// defaults are those of the variables of envoyproxy/ratelimit that are read here. Without one, a variable is empty,
// false or 0.
// docs/migrating/envoyproxy-ratelimit.md says what Weir does with each variable.
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

// reader translates one environment. An empty variable is one that is not set.
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

// isSet says whether the variable is set.
func (r *reader) isSet(name string) bool { return r.env[name] != "" }

// get is the variable's value or default.
func (r *reader) get(name string) string { return cmp.Or(r.env[name], defaults[name]) }

// read is the value of a variable as parse reads it. If it cannot, there is one error about it, and the default counts.
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

// number is the value of a whole number, 0 if it is not set.
func (r *reader) number(name string) int64 {
	return read(r, name, "a whole number", func(text string) (int64, error) {
		return strconv.ParseInt(cmp.Or(text, "0"), 0, 64)
	})
}

// port is the value of a port.
func (r *reader) port(name string) string {
	n := read(r, name, "a port, from 1 to 65535 (Kubernetes sets tcp://... for a Service of that "+
		"name, unless the pod has enableServiceLinks: false)", func(text string) (uint64, error) {
		n, err := strconv.ParseUint(text, 0, 16) // it may be hexadecimal
		if n == 0 {
			err = strconv.ErrRange
		}
		return n, err
	})
	return strconv.FormatUint(n, 10)
}

// pairs is the value of key:value,key:value, also with = instead of the colon. A value may be a secret.
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

// flag adds a flag with a value that comes from the variables.
func (r *reader) flag(name, value string, from ...string) { r.secret(name, value, value, from...) }

// secret is flag with a value that is shown otherwise.
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

// copied adds a flag if the variable is set.
func (r *reader) copied(flag, from string) {
	if r.isSet(from) {
		r.flag(flag, r.get(from), from)
	}
}

// on adds a flag without a value if the variable is true.
func (r *reader) on(flag, from string) {
	if r.is(from) {
		r.flag(flag, "true", from)
	}
}

// otel adds a variable of OpenTelemetry unless it is set.
func (r *reader) otel(name, value string, from ...string) {
	if !r.isSet(name) {
		r.out.OTel = append(r.out.OTel, r.setting(name, value, value, from))
		r.env[name] = value
	}
}

// escaped is a value of a flag that may be given several times, separated by sep.
func escaped(value, sep string) string { return strings.ReplaceAll(value, sep, `\`+sep) }
