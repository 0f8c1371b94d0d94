// Package ratelimitenv reads the environment of a process of envoyproxy/ratelimit and says by which flags weir serve
// does the same.
package ratelimitenv

import (
	"errors"
	"fmt"
	"net"
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
	// Secrets say where the secrets belong for which Shown has placeholders, a line each.
	Secrets []string
}

// Read translates an environment, as os.Environ returns it. Its error has a line for each variable that is ill-formed,
// or that asks for what Weir cannot do; it quotes no secret.
func Read(environ []string) (*Settings, error) {
	r := reader{env: map[string]string{}, known: map[string]Variable{}}
	for _, v := range environ {
		if name, value, _ := strings.Cut(v, "="); value != "" {
			r.env[name] = value
		}
	}
	for _, v := range table {
		r.known[v.Name] = v
		r.checkKind(v)
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

// reader translates one environment. An empty variable is one that is not set.
type reader struct {
	env   map[string]string
	known map[string]Variable
	out   Settings
	errs  []error
}

func (r *reader) fail(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
}

func (r *reader) remark(name, format string, args ...any) {
	r.out.Remarks = append(r.out.Remarks, name+": "+fmt.Sprintf(format, args...))
}

// checkKind reports a value that envoyproxy/ratelimit could not read either. The value becomes the default then, so
// that there is one error about it.
func (r *reader) checkKind(v Variable) {
	value, set := r.env[v.Name]
	if !set {
		return
	}
	var err error
	form := ""
	switch v.kind {
	case boolean:
		_, err = strconv.ParseBool(value)
		form = "true or false"
	case number:
		_, err = strconv.ParseInt(value, 0, 64)
		form = "a whole number"
	case share:
		_, err = strconv.ParseFloat(value, 64)
		form = "a number such as 0.8"
	case duration:
		if value != "0" {
			_, err = time.ParseDuration(value)
		}
		form = "a time such as 10s or 24h"
	case port:
		err = r.checkPort(v, value)
		form = "a port, from 1 to 65535"
	case pairs:
		_, err = splitPairs(value)
		form = "key:value,key:value"
	case text:
	}
	if err == nil {
		return
	}
	if v.kind == pairs { // a header may be a secret
		r.fail(v.Name, "must be %s", form)
	} else {
		r.fail(v.Name, "must be %s, got %q", form, value)
	}
	delete(r.env, v.Name)
}

// checkPort understands what Kubernetes sets in every container beside a Service that is called statsd, grpc or debug:
// STATSD_PORT=tcp://10.0.0.7:8125. That is where statsd is; but it is not where this process should listen.
func (r *reader) checkPort(v Variable, value string) error {
	if service, ok := strings.CutPrefix(value, "tcp://"); ok {
		_, ownPort, err := net.SplitHostPort(service)
		if err != nil {
			return err
		}
		if v.Name == "STATSD_PORT" {
			r.env[v.Name] = ownPort
			return nil
		}
		delete(r.env, v.Name)
		name := strings.ToLower(strings.TrimSuffix(v.Name, "_PORT"))
		r.remark(v.Name, "%s is what Kubernetes sets for a Service named %s, so the default %s counts; set the variable, "+
			"or enableServiceLinks: false in the pod", value, name, v.Default)
		return nil
	}
	n, err := strconv.ParseUint(value, 0, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	r.env[v.Name] = strconv.FormatUint(n, 10) // it may have been hexadecimal
	return err
}

// isSet says whether the variable is set.
func (r *reader) isSet(name string) bool { return r.env[name] != "" }

// get is the variable's value or default.
func (r *reader) get(name string) string {
	if v, ok := r.env[name]; ok {
		return v
	}
	return r.known[name].Default
}

// is is the value of a boolean.
func (r *reader) is(name string) bool {
	v, _ := strconv.ParseBool(r.get(name))
	return v
}

// time is the value of a duration.
func (r *reader) time(name string) time.Duration {
	d, _ := time.ParseDuration(r.get(name))
	return d
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

// splitPairs reads key:value,key:value, also with = instead of the colon.
func splitPairs(text string) (all [][2]string, err error) {
	for pair := range strings.SplitSeq(text, ",") {
		i := strings.IndexAny(pair, ":=")
		if i <= 0 {
			return nil, errors.New("no pair")
		}
		all = append(all, [2]string{strings.TrimSpace(pair[:i]), strings.TrimSpace(pair[i+1:])})
	}
	return all, nil
}

// escaped is a value of a flag that may be given several times, separated by sep.
func escaped(value, sep string) string { return strings.ReplaceAll(value, sep, `\`+sep) }
