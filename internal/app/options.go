package app

import (
	"log/slog"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/metrics/telemetry"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/store"
)

// Options are the flags of `weir serve`, each with its variable of the environment, default and meaning. The tags are
// those of github.com/alecthomas/kong. The zero value of a field is not its default.
type Options struct {
	RulesOptions   `embed:"" group:"rules"`
	XDS            xds.Options `embed:"" prefix:"xds-" envprefix:"WEIR_XDS_" group:"xds"`
	StoreOptions   `embed:"" group:"store"`
	ListenOptions  `embed:"" group:"listen"`
	TLSOptions     `embed:"" group:"tls"`
	GRPCOptions    `embed:"" group:"grpc"`
	QuotaOptions   `embed:"" group:"quota"`
	DecideOptions  `embed:"" group:"decide"`
	HeaderOptions  `embed:"" group:"headers"`
	Metrics        metrics.Options `embed:"" group:"metrics"`
	MetricsOptions `embed:"" group:"metrics"`
	Statsd         metrics.StatsdOptions `embed:"" prefix:"statsd-" envprefix:"WEIR_STATSD_" group:"metrics"`
	OTel           telemetry.Options     `embed:"" prefix:"otel-" envprefix:"WEIR_OTEL_" group:"otel"`
	StopOptions    `embed:"" group:"stop"`
	Top            topkeys.Options `embed:"" group:"top"`

	// Bounds are what no flag changes.
	Bounds Bounds `kong:"-"`
	// Embedded is for a Weir inside another process, which asks App.Decider: there is no gRPC server.
	Embedded bool `kong:"-"`
	// HoldGC, if not nil, puts garbage collections off while rules are loaded.
	HoldGC func() (release func()) `kong:"-"`
	// Build is what was built.
	Build Build `kong:"-"`
	// Log receives one line for the start, each load of rules, each refused load and the stop. It must not block: requests
	// log, too.
	Log *slog.Logger `kong:"-"`
	// LogStats, if not nil, returns how many lines of Log were dropped.
	LogStats func() logging.QueueStats `kong:"-"`
}

// Build is the version and what it was built with.
type Build = adminapi.Build

// RulesOptions say where the rules come from.
type RulesOptions struct {
	Rules           []string `env:"WEIR_RULES" required:"" placeholder:"PATH" help:"Rule file, directory of *.yaml and *.yml files, store for what weir publish has put into Redis, or xds for those of --xds-server. Repeat it, or separate by commas."`
	AllowEmptyRules bool     `env:"WEIR_ALLOW_EMPTY_RULES" help:"Start although the rules cannot be loaded; until they can, requests are answered Unavailable."`
	LenientRules    bool     `env:"WEIR_LENIENT_RULES" help:"Load what envoyproxy/ratelimit tolerates in rules (a descriptor twice, unknown replaces, fields at the wrong level): a finding, not an error."`
	RulesEveryFile  bool     `env:"WEIR_RULES_EVERY_FILE" help:"Read every regular file of a rules directory, whatever its name, as envoyproxy/ratelimit does; a directory that is missing or empty has no rules."`
	MaxRulesSize    int64    `env:"WEIR_MAX_RULES_SIZE" default:"16777216" help:"Most bytes of rule files together, and of an answer of --rules xds. More are refused before they are parsed. Loading takes up to 60 times as much memory."`
	RulesPrefix     string   `env:"WEIR_RULES_PREFIX" placeholder:"NAME" help:"Of a rules directory, read only the files below NAME/ and those whose names begin with NAME and a dot, as envoyproxy/ratelimit does with RUNTIME_APPDIRECTORY."`
}

// StoreOptions say where the counters are and what happens without them.
type StoreOptions = store.Options

// ListenOptions are the addresses.
type ListenOptions struct {
	GRPCAddr    string `name:"grpc-addr" env:"WEIR_GRPC_ADDR" default:":8081" help:"Address for Envoy (gRPC): host:port, :port or unix:PATH."`
	HTTPAddr    string `name:"http-addr" env:"WEIR_HTTP_ADDR" default:":8080" help:"Address of health, rules and metrics (HTTP): host:port, :port or unix:PATH; empty for none."`
	Pprof       bool   `env:"WEIR_PPROF" help:"Also serve profiles of the process, for go tool pprof, at /debug/pprof/ of the HTTP address."`
	AdminSocket string `env:"WEIR_ADMIN_SOCKET" default:"auto" placeholder:"PATH|@NAME" help:"Unix socket for commands of weir on this machine, whose requests may change state without a token, from the same user and root: a file, or an abstract socket of Linux. auto is @weir-PORT for the port of --http-addr (elsewhere than on Linux weir-PORT.sock in the folder for temporary files), and PATH.admin beside unix:PATH. Empty for none."`
	DebugAddr   string `env:"WEIR_DEBUG_ADDR" placeholder:"ADDR" help:"Also serve the debug pages of envoyproxy/ratelimit at this address: /rlconfig, /stats."`

	HealthcheckNeedsRules bool `env:"WEIR_HEALTHCHECK_NEEDS_RULES" help:"GET /healthcheck answers 500 while there are no rules."`
	HealthcheckNeedsLoad  bool `env:"WEIR_HEALTHCHECK_NEEDS_LOAD" help:"GET /healthcheck answers 500 until rules have been loaded for the first time, even if there are none."`
	HTTPJSON              bool `name:"http-json" env:"WEIR_HTTP_JSON" help:"Decide requests that come as JSON to /json of the HTTP address, as envoyproxy/ratelimit does. Whoever reaches the address may send them, unless the gRPC address requires client certificates: then those who may change state."`
}

// TLSOptions are certificates, and who may change state over HTTP.
type TLSOptions struct {
	GRPCTLSCert        string   `name:"grpc-tls-cert" env:"WEIR_GRPC_TLS_CERT" placeholder:"FILE" help:"Certificate of the gRPC address, in PEM; switches TLS on. Certificates, keys and authorities are read again when they change."`
	GRPCTLSKey         string   `name:"grpc-tls-key" env:"WEIR_GRPC_TLS_KEY" placeholder:"FILE" help:"Private key of --grpc-tls-cert, in PEM."`
	GRPCTLSClientCA    string   `name:"grpc-tls-client-ca" env:"WEIR_GRPC_TLS_CLIENT_CA" placeholder:"FILE" help:"Certificate authorities, in PEM: clients need a certificate of one of them."`
	GRPCTLSClientNames []string `name:"grpc-tls-client-names" env:"WEIR_GRPC_TLS_CLIENT_NAMES" placeholder:"NAME" help:"Subject alternative names, such as spiffe://mesh/ns/edge/sa/envoy: a client's certificate must have one of them. Repeat it, or separate by commas."`
	HTTPTLSCert        string   `name:"http-tls-cert" env:"WEIR_HTTP_TLS_CERT" placeholder:"FILE" help:"Certificate of the HTTP address, in PEM; switches TLS on."`
	HTTPTLSKey         string   `name:"http-tls-key" env:"WEIR_HTTP_TLS_KEY" placeholder:"FILE" help:"Private key of --http-tls-cert, in PEM."`
	HTTPTLSClientCA    string   `name:"http-tls-client-ca" env:"WEIR_HTTP_TLS_CLIENT_CA" placeholder:"FILE" help:"Certificate authorities, in PEM: changing state (POST, DELETE), taking a profile and seeing values of keys require a certificate of one of them, the token or the admin socket."`
	HTTPTokenFile      string   `name:"http-token-file" env:"WEIR_HTTP_TOKEN_FILE" placeholder:"FILE" help:"File with a token: changing state (POST, DELETE), taking a profile and seeing values of keys require it as Authorization: Bearer ..., a certificate or the admin socket."`
}

// GRPCOptions bound what clients may send.
type GRPCOptions struct {
	GRPCMaxConnectionAge time.Duration `name:"grpc-max-connection-age" env:"WEIR_GRPC_MAX_CONNECTION_AGE" default:"30m" help:"Ask clients to connect again after this time, so that they spread over all replicas; 0 for never."`
	MaxDescriptors       int           `env:"WEIR_MAX_DESCRIPTORS" default:"128" help:"Most descriptors in a request."`
	MaxCounters          int           `env:"WEIR_MAX_COUNTERS" default:"1024" help:"Most limits that a request may charge, over all its descriptors; requests beyond fail with InvalidArgument."`
	MaxHeld              int           `env:"WEIR_MAX_HELD" default:"10000" help:"Most responses that leaky_queue and max_wait hold at once; requests beyond are denied."`
	DynamicMetadata      bool          `env:"WEIR_DYNAMIC_METADATA" help:"Add dynamic metadata to every response, not only where a rule has metadata."`
}

// QuotaOptions are of the parts of limits that are assigned to Envoys.
type QuotaOptions struct {
	Quota    bool          `env:"WEIR_QUOTA" help:"Also assign parts of limits to Envoys with the filter rate_limit_quota (RLQS), which then decide by themselves; see docs/operate/quotas.md. Experimental."`
	QuotaTTL time.Duration `name:"quota-ttl" env:"WEIR_QUOTA_TTL" default:"15s" help:"How long an Envoy may use what is assigned to it without hearing from Weir again: whole seconds, at least 10s."`
}

// DecideOptions change what rules mean, to what envoyproxy/ratelimit does with them.
type DecideOptions struct {
	ChargeEach       bool `env:"WEIR_CHARGE_EACH" help:"Charge each limit of a request by itself, also when another one denies the request. Without it, a denied request charges no limit that it fits."`
	AllowLookAtLimit bool `env:"WEIR_ALLOW_LOOK_AT_LIMIT" help:"Admit a request of cost 0 while no more than the limit is used. Without it, one more hit must fit."`
	ShadowMode       bool `env:"WEIR_SHADOW_MODE" help:"Put all limits in shadow mode: they count, and deny nothing."`
	QuotaMode        bool `env:"WEIR_QUOTA_MODE" help:"Put all limits in quota mode: a request is denied when all of its descriptors are over."`
}

// HeaderOptions are the response headers with the nearest limit.
type HeaderOptions struct {
	RatelimitHeaders bool                `env:"WEIR_RATELIMIT_HEADERS" help:"Add response headers with the limit that is nearest to its end, as envoyproxy/ratelimit does with LIMIT_RESPONSE_HEADERS_ENABLED."`
	LimitHeaders     decide.LimitHeaders `embed:"" prefix:"ratelimit-" envprefix:"WEIR_RATELIMIT_"`
	RetryAfter       bool                `env:"WEIR_RETRY_AFTER" default:"true" negatable:"" help:"Send Retry-After with each denial: how long to wait, or the window of a limit that no wait satisfies."`
}

// MetricsOptions are where metrics are shown besides --http-addr.
type MetricsOptions struct {
	MetricsAddr string `env:"WEIR_METRICS_ADDR" placeholder:"ADDR" help:"Also serve the metrics, and nothing else, at this address: host:port, :port or unix:PATH."`
	MetricsPath string `env:"WEIR_METRICS_PATH" default:"/metrics" help:"Path of the metrics at --metrics-addr."`
}

// StopOptions are the times of a stop.
type StopOptions struct {
	DrainDelay  time.Duration `env:"WEIR_DRAIN_DELAY" default:"2s" help:"How long to go on answering after SIGTERM while /readyz and health checks fail, so that clients go elsewhere."`
	StopTimeout time.Duration `env:"WEIR_STOP_TIMEOUT" default:"5s" help:"How long requests in flight may take to end after that."`
}

// process is what rule files leave to the process.
func (o *Options) process() (descriptors.Process, error) {
	onFailure, err := descriptors.ParseOnStoreFailure(o.OnStoreFailure)
	name := ""
	if o.PerSecondStore != "" {
		name = store.PerSecond
	}
	return descriptors.Process{
		OnStoreFailure: onFailure, Replicas: o.Replicas, ShadowMode: o.ShadowMode, QuotaMode: o.QuotaMode,
		LookAtLimit: o.AllowLookAtLimit, Lenient: o.LenientRules, PerSecondStore: name,
	}, err
}
