package app

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/telemetry"
	"github.com/weir-ratelimit/weir/internal/topkeys"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Options is everything that an App can be told. The zero value of a field is not its default: the defaults
// stand with the flags of cmd/sidecar. Each field is the flag of the same name.
type Options struct {
	// Rules are files and directories of rule files, and "store" for what is published in Redis; at least one.
	Rules []string
	// AllowEmptyRules starts the process although the rules cannot be loaded: requests are answered
	// Unavailable until they can.
	AllowEmptyRules bool
	// RulesPoll is how often the rule files are read even if nothing said that they changed.
	RulesPoll time.Duration
	// RulesSettle is how long changed rule files must stay the same before they are loaded.
	RulesSettle time.Duration

	// Store is "memory" or the URL of a Redis, see store.Forms.
	Store string
	// StoreTimeout bounds a request's wait for the store.
	StoreTimeout time.Duration
	// StoreKeyPrefix is put in front of every key in Redis.
	StoreKeyPrefix string
	// StorePoolSize is the number of connections to Redis; 0 is the client's default, ten for each CPU.
	StorePoolSize int
	// NamedStores are the URLs of further Redis servers by the names that limits give them (`store: NAME`).
	NamedStores map[string]string
	// KnownDenials answers a cost that Redis has denied without asking again until it may pass.
	KnownDenials bool
	// OnStoreFailure is the on_store_failure of limits that have none: allow, deny or local.
	OnStoreFailure string
	// Replicas is how many sidecars share the limits: the part of a limit that each counts while Redis does not.
	Replicas int
	// MemoryMaxKeys is the most counters that are kept in memory.
	MemoryMaxKeys int

	// GRPCAddr and HTTPAddr are "host:port", ":port" or "unix:PATH". An empty HTTPAddr switches HTTP off.
	GRPCAddr, HTTPAddr string
	// Pprof adds profiles of the process to the HTTP endpoints.
	Pprof bool
	// SocketMode is the permissions of Unix sockets, octal.
	SocketMode string

	// GRPCTLSCert and GRPCTLSKey are files of a certificate and its key, in PEM: the service then speaks TLS. With
	// GRPCTLSClientCA, a file of authorities, a client needs a certificate of one of them, and with GRPCTLSClientNames one for
	// one of these names (DNS names, URIs such as SPIFFE IDs, IP or mail addresses). All are read anew as they change.
	GRPCTLSCert, GRPCTLSKey, GRPCTLSClientCA string
	GRPCTLSClientNames                       []string
	// HTTPTLSCert, HTTPTLSKey and HTTPTLSClientCA are the same for HTTP, where a certificate is needed only by those who
	// change something, take a profile or see values of keys. HTTPTokenFile holds a token that does for that, too. Without
	// either, only this machine may, unless HTTPOpen lets everybody.
	HTTPTLSCert, HTTPTLSKey, HTTPTLSClientCA, HTTPTokenFile string
	HTTPOpen                                                bool
	// HTTPHosts are names by which the process is asked over HTTP, beside addresses and private names.
	HTTPHosts []string

	// GRPCMaxConnectionAge closes a connection, gracefully, so that clients spread again; 0 never does.
	GRPCMaxConnectionAge time.Duration
	// GRPCMaxConnectionIdle closes a connection, gracefully, that had no request for this time; 0 never does.
	GRPCMaxConnectionIdle time.Duration
	// GRPCMaxConnections and HTTPMaxConnections are the most connections at once. Where they are 0, or more than there are
	// file descriptors for, the process chooses: see bounds.
	GRPCMaxConnections, HTTPMaxConnections int
	// GRPCReceiveTimeout is how long a request may take to arrive, GRPCMaxReceiving the most memory of all that have not
	// arrived whole, in bytes, GRPCMaxResets the most requests that one connection may reset in a second.
	GRPCReceiveTimeout              time.Duration
	GRPCMaxReceiving, GRPCMaxResets int
	// GRPCMaxStreams is the most requests at once on one connection.
	GRPCMaxStreams uint32
	// GRPCMaxMessageSize is the largest request, in bytes.
	GRPCMaxMessageSize int
	// GRPCKeepaliveTime is the silence after which a client is pinged, GRPCKeepaliveTimeout how long it has to
	// answer before its connection is closed.
	GRPCKeepaliveTime, GRPCKeepaliveTimeout time.Duration
	// MaxDescriptors is the most descriptors in a request, MaxEntries the most entries in a descriptor.
	MaxDescriptors, MaxEntries int
	// MaxCounters is the most limits that a request may ask, of all its descriptors together.
	MaxCounters int
	// MaxHeld is the most answers that limits with a wait hold back at once.
	MaxHeld int
	// DynamicMetadata adds dynamic metadata to every response, and not only where a rule has `metadata`.
	DynamicMetadata bool
	// RatelimitHeaders adds response headers of these names, as envoyproxy/ratelimit does.
	RatelimitHeaders                                                     bool
	RatelimitLimitHeader, RatelimitRemainingHeader, RatelimitResetHeader string

	// DecisionLog is stdout, stderr or a file that gets a line of JSON for each of a sample of requests; empty for none.
	// DecisionLogSample is the share of requests that is written, DecisionLogSampleDenied that of those in which a limit did
	// not fit, DecisionLogRate the most lines a second. DecisionLogValues is plain, hash or none, DecisionLogKeyFile has the
	// secret of hashes; empty for one that nobody knows.
	DecisionLog                                string
	DecisionLogSample, DecisionLogSampleDenied float64
	DecisionLogRate                            int
	DecisionLogValues, DecisionLogKeyFile      string

	// MetricsMaxRules is how many rules have series of their own.
	MetricsMaxRules int
	// NearLimitRatio is the part of a limit above which a hit counts as near it.
	NearLimitRatio float64
	// ClassicMetrics adds the metrics of envoyproxy/ratelimit.
	ClassicMetrics bool
	// StatsdAddr is where the metrics are sent, udp://HOST:PORT or unix:///PATH, every StatsdInterval in StatsdFormat
	// (statsd, dogstatsd); empty is nowhere. StatsdPrefix begins their names, StatsdTags (NAME:VALUE) go with each.
	StatsdAddr, StatsdFormat, StatsdPrefix string
	StatsdInterval                         time.Duration
	StatsdTags                             []string

	// OTelTraces and OTelMetrics send traces and metrics by OTLP. The OTEL_* variables of the environment say where to.
	OTelTraces, OTelMetrics bool

	// DrainDelay is how long requests are still taken after the process has said that it is not ready.
	DrainDelay time.Duration
	// StopTimeout is how long the requests in flight have to end after that.
	StopTimeout time.Duration

	// TopKeys is how many keys are counted for each rule, busiest and most denied; 0 is none. TopKeysHash shows their values as
	// hashes.
	TopKeys     int
	TopKeysHash bool

	// HoldGC, if not nil, puts garbage collections off while rules are loaded.
	HoldGC func() (release func())
	// Build is what was built.
	Build Build
	// Log receives one line for the start, each load of rules, each refused load and the stop. It must not block: requests
	// log, too.
	Log *slog.Logger
	// LogStats, if not nil, says how many lines of Log were dropped.
	LogStats func() LogStats
}

// LogStats counts lines of the process's log that nobody will read.
type LogStats = metrics.LogStats

// Build says what was built.
type Build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
}

// storeName is what a limit can call a store.
var storeName = regexp.MustCompile("^[a-z0-9_]+$")

// rulesStore is the one of Rules that is no path.
const rulesStore = "store"

// Validate checks every field; its error joins one for each wrong one, named as its flag.
func (o *Options) Validate() error {
	var c checker
	c.check(len(o.Rules) > 0, "--rules", "name at least one file or directory")
	c.check(!slices.Contains(o.Rules, rulesStore) || o.Store != store.Memory, "--rules",
		"%s is the rules in Redis: it needs --store redis://...; write ./%s for a directory of that name", rulesStore, rulesStore)
	c.between("--rules-poll", o.RulesPoll, 100*time.Millisecond, time.Hour)
	c.between("--rules-settle", o.RulesSettle, time.Millisecond, 10*time.Second)
	if o.Store != store.Memory {
		c.store("--store", o.Store)
	}
	c.check(o.Store != store.Memory || len(o.NamedStores) == 0, "--named-store",
		"needs a Redis as --store, too, for the limits without store: NAME: add --store redis://host:6379/0, or put the URL there and drop the name")
	for _, name := range slices.Sorted(maps.Keys(o.NamedStores)) {
		c.check(storeName.MatchString(name), "--named-store", "a name has a-z, 0-9 and _, got %q", name)
		c.store("--named-store "+name, o.NamedStores[name])
	}
	c.between("--store-timeout", o.StoreTimeout, time.Millisecond, 10*time.Second)
	c.count("--store-pool-size", o.StorePoolSize, 0, 10_000)
	_, err := o.process()
	c.check(err == nil, "--on-store-failure", "must be allow, deny or local, got %q", o.OnStoreFailure)
	c.count("--replicas", o.Replicas, 1, 100_000)
	c.count("--memory-max-keys", o.MemoryMaxKeys, 1, 1_000_000_000)
	c.addr("--grpc-addr", o.GRPCAddr)
	if o.HTTPAddr != "" {
		c.addr("--http-addr", o.HTTPAddr)
	}
	c.tls("grpc", o.GRPCTLSCert, o.GRPCTLSKey, o.GRPCTLSClientCA)
	c.check(len(o.GRPCTLSClientNames) == 0 || o.GRPCTLSClientCA != "", "--grpc-tls-client-names", "needs --grpc-tls-client-ca")
	c.tls("http", o.HTTPTLSCert, o.HTTPTLSKey, o.HTTPTLSClientCA)
	_, err = o.socketMode()
	c.check(err == nil, "--socket-mode", "must be an octal number from 0 to 0777, got %q", o.SocketMode)
	if o.GRPCMaxConnectionAge != 0 {
		c.between("--grpc-max-connection-age", o.GRPCMaxConnectionAge, time.Second, 365*24*time.Hour)
	}
	if o.GRPCMaxConnectionIdle != 0 {
		c.between("--grpc-max-connection-idle", o.GRPCMaxConnectionIdle, time.Second, 365*24*time.Hour)
	}
	c.count("--grpc-max-connections", o.GRPCMaxConnections, 0, 1_000_000)
	c.count("--http-max-connections", o.HTTPMaxConnections, 0, 1_000_000)
	c.between("--grpc-receive-timeout", o.GRPCReceiveTimeout, 100*time.Millisecond, 10*time.Minute)
	c.count("--grpc-max-receiving", o.GRPCMaxReceiving, 1<<20, 1<<40)
	c.count("--grpc-max-resets", o.GRPCMaxResets, 10, 10_000_000)
	c.check(o.GRPCMaxStreams >= 1, "--grpc-max-streams", "must be at least 1")
	c.count("--grpc-max-message-size", o.GRPCMaxMessageSize, 1<<10, 64<<20)
	c.between("--grpc-keepalive-time", o.GRPCKeepaliveTime, time.Second, 24*time.Hour)
	c.between("--grpc-keepalive-timeout", o.GRPCKeepaliveTimeout, time.Second, time.Hour)
	c.count("--max-held", o.MaxHeld, 1, 10_000_000)
	c.count("--max-descriptors", o.MaxDescriptors, 1, 10_000)
	c.count("--max-entries", o.MaxEntries, 1, 1_000)
	c.count("--max-counters", o.MaxCounters, 1, 1_000_000)
	if o.RatelimitHeaders {
		c.header("--ratelimit-limit-header", o.RatelimitLimitHeader)
		c.header("--ratelimit-remaining-header", o.RatelimitRemainingHeader)
		c.header("--ratelimit-reset-header", o.RatelimitResetHeader)
	}
	if o.DecisionLog != "" {
		o.checkDecisionLog(&c)
	}
	c.count("--metrics-max-rules", o.MetricsMaxRules, 0, 1_000_000)
	c.check(o.NearLimitRatio >= 0 && o.NearLimitRatio <= 1, "--near-limit-ratio", "must be between 0 and 1, got %v", o.NearLimitRatio)
	c.check(o.StatsdAddr != "" || len(o.StatsdTags) == 0, "--statsd-tag", "needs --statsd-addr")
	if o.StatsdAddr != "" {
		c.statsd(o)
	}
	c.between("--drain-delay", o.DrainDelay, 0, 10*time.Minute)
	c.between("--stop-timeout", o.StopTimeout, 0, 10*time.Minute)
	c.count("--top-keys", o.TopKeys, 0, topkeys.MaxPerRule)
	return errors.Join(c.errs...)
}

// socketMode is SocketMode as a number.
func (o *Options) socketMode() (fs.FileMode, error) {
	n, err := strconv.ParseUint(o.SocketMode, 8, 32)
	if err == nil && n > 0o777 {
		err = strconv.ErrRange
	}
	return fs.FileMode(n), err
}

// process is what rule files leave to the process.
func (o *Options) process() (descriptors.Process, error) {
	onFailure, err := descriptors.ParseOnStoreFailure(o.OnStoreFailure)
	return descriptors.Process{OnStoreFailure: onFailure, Replicas: o.Replicas}, err
}

// metrics is what is shown.
func (o *Options) metrics() metrics.Options {
	return metrics.Options{
		Version: o.Build.Version, Commit: o.Build.Commit, Go: o.Build.Go,
		MaxRules: o.MetricsMaxRules, NearLimitRatio: o.NearLimitRatio, Classic: o.ClassicMetrics,
	}
}

// limitHeaders are the names of the headers that are on.
func (o *Options) limitHeaders() decide.LimitHeaders {
	if !o.RatelimitHeaders {
		return decide.LimitHeaders{}
	}
	return decide.LimitHeaders{Limit: o.RatelimitLimitHeader, Remaining: o.RatelimitRemainingHeader, Reset: o.RatelimitResetHeader}
}

// checker collects what is wrong.
type checker struct{ errs []error }

func (c *checker) check(ok bool, flag, format string, args ...any) {
	if !ok {
		c.errs = append(c.errs, fmt.Errorf("%s: "+format, append([]any{flag}, args...)...))
	}
}

func (c *checker) between(flag string, v, lo, hi time.Duration) {
	c.check(v >= lo && v <= hi, flag, "must be between %s and %s, got %s", lo, hi, v)
}

func (c *checker) count(flag string, v, lo, hi int) {
	c.check(v >= lo && v <= hi, flag, "must be between %d and %d, got %d", lo, hi, v)
}

// headerName is what RFC 9110 admits.
var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}$")

func (c *checker) header(flag, name string) {
	c.check(headerName.MatchString(name), flag, "must be a header's name of letters, digits and -, got %q", name)
}

func (c *checker) addr(flag, addr string) {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		c.check(path != "", flag, "has no path after %s", unixPrefix)
		return
	}
	c.check(strings.Contains(addr, ":"), flag, "must be host:port, :port or unix:PATH, got %q", addr)
}

func (c *checker) tls(listener, cert, key, clientCA string) {
	flag := "--" + listener + "-tls-"
	c.check((cert == "") == (key == ""), flag+"cert", "goes together with %skey", flag)
	c.check(clientCA == "" || cert != "", flag+"client-ca", "needs %scert and %skey: without TLS there are no client certificates", flag, flag)
}

func (c *checker) statsd(o *Options) {
	c.between("--statsd-interval", o.StatsdInterval, time.Second, time.Hour)
	if _, err := metrics.NewStatsd(o.statsd()); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") { // which begins with the end of the flag's name
			c.errs = append(c.errs, errors.New("--statsd-"+line))
		}
	}
}

// statsd is how metrics are sent.
func (o *Options) statsd() metrics.StatsdOptions {
	return metrics.StatsdOptions{
		Addr: o.StatsdAddr, Format: o.StatsdFormat, Prefix: o.StatsdPrefix, Tags: o.StatsdTags, Interval: o.StatsdInterval, Log: o.Log,
	}
}

// store never quotes the URL, since there may be a password in it.
func (c *checker) store(flag, url string) {
	if err := store.CheckURL(url); err != nil {
		c.check(false, flag, "%w", err)
	}
}

// telemetry is what to send by OTLP.
func (o *Options) telemetry(m *metrics.Metrics) telemetry.Options {
	t := telemetry.Options{Traces: o.OTelTraces, Version: o.Build.Version, Log: o.Log}
	if o.OTelMetrics {
		t.Metrics = m.Producer()
	}
	return t
}
