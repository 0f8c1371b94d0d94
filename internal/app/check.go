package app

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/store"
)

// The values of --rules that are no path.
const (
	rulesStore = "store"
	rulesXDS   = "xds"
)

// IsNoPath reports that the value of --rules names another source than a file or a directory.
func IsNoPath(rules string) bool { return rules == rulesStore || rules == rulesXDS }

// Check checks every field. It is not called Validate, which kong would call before the command runs. Its error has one
// line for each wrong one, which begins with its flag.
func (o *Options) Check() error {
	c := checker{listen: map[string]string{}}
	o.check(&c, &o.StoreOptions)
	checkXDS(&c, &o.XDS, slices.Contains(o.Rules, rulesXDS))
	checkStore(&c, &o.StoreOptions)
	c.addr("--grpc-addr", o.GRPCAddr)
	if o.HTTPAddr != "" {
		c.addr("--http-addr", o.HTTPAddr)
	}
	if o.DebugAddr != "" {
		c.addr("--debug-addr", o.DebugAddr)
	}
	c.tls("grpc", o.GRPCTLSCert, o.GRPCTLSKey, o.GRPCTLSClientCA)
	c.check(len(o.GRPCTLSClientNames) == 0 || o.GRPCTLSClientCA != "", "--grpc-tls-client-names",
		"needs --grpc-tls-client-ca")
	c.tls("http", o.HTTPTLSCert, o.HTTPTLSKey, o.HTTPTLSClientCA)
	if o.GRPCMaxConnectionAge != 0 {
		between(&c, "--grpc-max-connection-age", o.GRPCMaxConnectionAge, time.Second, 365*24*time.Hour)
	}
	between(&c, "--max-held", o.MaxHeld, 1, 10_000_000)
	between(&c, "--max-descriptors", o.MaxDescriptors, 1, 10_000)
	between(&c, "--max-counters", o.MaxCounters, 1, 1_000_000)
	if o.Quota {
		between(&c, "--quota-ttl", o.QuotaTTL, rlqs.MinTTL, time.Hour)
		c.check(o.QuotaTTL%time.Second == 0, "--quota-ttl", "must be whole seconds, since Envoy cuts the rest off, got %s",
			o.QuotaTTL)
	}
	if o.RatelimitHeaders {
		c.header("--ratelimit-limit-header", o.LimitHeaders.Limit)
		c.header("--ratelimit-remaining-header", o.LimitHeaders.Remaining)
		c.header("--ratelimit-reset-header", o.LimitHeaders.Reset)
	}
	between(&c, "--metrics-max-rules", o.Metrics.MaxRules, 0, 1_000_000)
	between(&c, "--near-limit-ratio", o.Metrics.NearLimitRatio, 0, 1)
	if o.MetricsAddr != "" {
		c.addr("--metrics-addr", o.MetricsAddr)
		c.check(metricsPath.MatchString(o.MetricsPath), "--metrics-path", "must be a path such as /metrics, got %q",
			o.MetricsPath)
	}
	if o.Statsd.Addr != "" || len(o.Statsd.Tags) > 0 {
		_, err := metrics.NewStatsd(o.Statsd)
		c.errs = append(c.errs, err)
	}
	if p := o.OTel.Protocol; o.OTel.Traces {
		c.check(p == "" || p == "grpc" || p == "http", "--otel-protocol", "must be grpc or http, got %q", p)
	}
	between(&c, "--drain-delay", o.DrainDelay, 0, 10*time.Minute)
	between(&c, "--stop-timeout", o.StopTimeout, 0, 10*time.Minute)
	between(&c, "--top-keys", o.Top.PerRule, 0, topkeys.MaxPerRule)
	return errors.Join(c.errs...)
}

func (o *RulesOptions) check(c *checker, s *StoreOptions) {
	c.check(len(o.Rules) > 0, "--rules", "name at least one file or directory")
	c.check(!slices.Contains(o.Rules, rulesStore) || s.Store != store.Memory, "--rules",
		"%s is the rules in Redis: it needs --store redis://...; write ./%s for a directory of that name",
		rulesStore, rulesStore)
	c.check(!slices.Contains(o.Rules, rulesStore) || !store.Proxied(s.Store), "--rules",
		"%s is the rules in Redis, whose changes are not heard through a proxy (proxy=true): take the rules from files or "+
			"by xDS", rulesStore)
	between(c, "--max-rules-size", o.MaxRulesSize, 1<<10, 1<<30)
	c.check(!strings.ContainsAny(o.RulesPrefix, "/\\"), "--rules-prefix", "must be a name without slashes, got %q",
		o.RulesPrefix)
}

func checkXDS(c *checker, o *xds.Options, isUsed bool) {
	c.check(!isUsed || o.Server != "", "--rules", "%s is the rules of a control plane: it needs --xds-server "+
		"HOST:PORT; write ./%s for a directory of that name", rulesXDS, rulesXDS)
	if o.Server == "" {
		return
	}
	c.check(isUsed, "--xds-server", "needs --rules %s", rulesXDS)
	host, port, err := net.SplitHostPort(o.Server)
	c.check(err == nil && host != "" && port != "", "--xds-server", "must be host:port, such as envoy-gateway:18001, "+
		"got %q", o.Server)
	c.check(o.NodeID != "", "--xds-node-id", "must not be empty: the server tells its clients apart by it")
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		// What is no name may hold a secret, as of authorization: Basic c2VjcmV0Cg==
		c.check(headerName.MatchString(name), "--xds-header", "what is before the first = must be a header's name of "+
			"letters, digits and -; write NAME=VALUE")
		// gRPC has these for itself.
		c.check(!strings.HasPrefix(strings.ToLower(name), "grpc-"), "--xds-header", "the name must not begin with grpc-")
	}
	c.check((o.TLS.Cert == "") == (o.TLS.Key == ""), "--xds-tls-cert", "goes together with --xds-tls-key")
	c.check(o.UseTLS || o.TLS.Cert == "" && o.TLS.CA == "" && o.TLS.ServerName == "", "--xds-tls",
		"is not set, so that --xds-tls-cert, --xds-tls-ca and --xds-tls-server-name have no use; "+
			"add --xds-tls, or remove them")
}

// storeName is what a limit can call a store.
var storeName = regexp.MustCompile("^[a-z0-9_]+$")

func checkStore(c *checker, o *StoreOptions) {
	if o.Store != store.Memory {
		c.store("--store", o.Store)
	}
	c.check(o.Store != store.Memory || len(o.NamedStores) == 0, "--named-store",
		"needs a Redis as --store, too, for the limits without store: NAME: add --store "+
			"redis://host:6379/0, or put the URL there and drop the name")
	if o.PerSecondStore != "" {
		c.check(o.Store != store.Memory, "--per-second-store", "needs a Redis as --store, too, for all other limits")
		c.check(o.NamedStores[store.PerSecond] == "", "--named-store",
			"%s is the name of --per-second-store; take another one", store.PerSecond)
		c.store("--per-second-store", o.PerSecondStore)
	}
	for _, name := range slices.Sorted(maps.Keys(o.NamedStores)) {
		c.check(storeName.MatchString(name), "--named-store", "a name has a-z, 0-9 and _, got %q", name)
		c.store("--named-store "+name, o.NamedStores[name])
	}
	if o.StoreTimeout != 0 { // as long as the caller waits
		between(c, "--store-timeout", o.StoreTimeout, time.Millisecond, store.MaxTimeout)
	}
	_, err := descriptors.ParseOnStoreFailure(o.OnStoreFailure)
	c.check(err == nil, "--on-store-failure", "must be local, allow, deny or error, got %q", o.OnStoreFailure)
	between(c, "--replicas", o.Replicas, 1, 100_000)
	between(c, "--memory-max-keys", o.MemoryMaxKeys, 1, 1_000_000_000)
}

// metricsPath is a path without patterns.
var metricsPath = regexp.MustCompile("^/[A-Za-z0-9._~/-]*$")

// checker collects what is wrong.
type checker struct {
	errs   []error
	listen map[string]string // the flag of each address
}

func (c *checker) check(ok bool, flag, format string, args ...any) {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf("%s: "+format, append([]any{flag}, args...)...))
	}
}

// between checks a number or a time.
func between[T cmp.Ordered](c *checker, flag string, v, lo, hi T) {
	c.check(v >= lo && v <= hi, flag, "must be between %v and %v, got %v", lo, hi, v)
}

// headerName is what RFC 9110 allows.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}$")

func (c *checker) header(flag, name string) {
	c.check(headerName.MatchString(name), flag, "must be a header's name of letters, digits and -, got %q", name)
}

func (c *checker) addr(flag, addr string) {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		c.check(path != "", flag, "has no path after %s", unixPrefix)
		return
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port) //nolint:noctx // it asks no server
	}
	c.check(err == nil, flag, "must be host:port, :port or unix:PATH, got %q", addr)
	if !strings.HasSuffix(addr, ":0") {
		c.check(c.listen[addr] == "", flag, "is %s, as %s is; take another port", addr, c.listen[addr])
		c.listen[addr] = flag
	}
}

func (c *checker) tls(listener, cert, key, clientCA string) {
	flag := "--" + listener + "-tls-"
	c.check((cert == "") == (key == ""), flag+"cert", "goes together with %skey", flag)
	c.check(clientCA == "" || cert != "", flag+"client-ca",
		"needs %scert and %skey: without TLS there are no client certificates", flag, flag)
}

// store never quotes the URL, since there may be a password in it.
func (c *checker) store(flag, url string) {
	err := store.CheckURL(url)
	c.check(err == nil, flag, "%w", err)
}
