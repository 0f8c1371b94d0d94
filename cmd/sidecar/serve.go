package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/weir-ratelimit/weir/internal/app"
	"github.com/weir-ratelimit/weir/internal/gcpace"
)

// flagGroups are the headings in the help of serve.
var flagGroups = []kong.Group{
	{Key: "rules", Title: "Rules:"},
	{Key: "store", Title: "Counters:"},
	{Key: "listen", Title: "Listening:"},
	{Key: "tls", Title: "TLS and who may:"},
	{Key: "grpc", Title: "gRPC:"},
	{Key: "headers", Title: "Response headers:"},
	{Key: "decisions", Title: "Log of decisions:"},
	{Key: "metrics", Title: "Metrics:"},
	{Key: "otel", Title: "OpenTelemetry:"},
	{Key: "stop", Title: "Stopping:"},
	{Key: "top", Title: "Top keys:"},
	{Key: "log", Title: "Logging:"},
}

// serveCmd is `weir serve`.
type serveCmd struct {
	Options serveOptions `embed:""`

	LogLevel  string `group:"log" env:"WEIR_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"Least important level to log: debug, info, warn or error."`
	LogFormat string `group:"log" env:"WEIR_LOG_FORMAT" default:"text" enum:"text,json" help:"text or json."`

	PrintConfig bool `help:"Print the value of every flag and where it comes from, without passwords, and end."`
}

// serveOptions are app.Options with their flags: the same fields in the same order, so that one converts into
// the other and none is forgotten.
type serveOptions struct {
	Rules           []string      `group:"rules" env:"WEIR_RULES" required:"" placeholder:"PATH" help:"Rule file, directory of *.yaml and *.yml files, or store for what weir publish has put into Redis. Repeat it, or separate by commas."`
	AllowEmptyRules bool          `group:"rules" env:"WEIR_ALLOW_EMPTY_RULES" help:"Start although the rules cannot be loaded; until they can, requests are answered Unavailable."`
	RulesPoll       time.Duration `group:"rules" env:"WEIR_RULES_POLL" default:"5s" help:"How often to look for changes that the file system did not tell."`
	RulesSettle     time.Duration `group:"rules" env:"WEIR_RULES_SETTLE" default:"50ms" help:"How long changed files must stay the same before they are loaded; longer where they are written slowly."`

	Store          string            `group:"store" env:"WEIR_STORE" default:"memory" help:"memory, redis://[user:password@]host:port/db, unix://[user:password@]/path?db=0, redis+sentinel://host:port,host:port/master/db or redis+cluster://host:port,host:port; rediss for TLS; options behind ?, see docs/operations.md. Give a password by the variable or as ?password_file=PATH: everybody on the machine can see a command line."`
	StoreTimeout   time.Duration     `group:"store" env:"WEIR_STORE_TIMEOUT" default:"15ms" help:"Longest wait for the store; keep it below the timeout in Envoy, which is 20ms unless set."`
	StoreKeyPrefix string            `group:"store" env:"WEIR_STORE_KEY_PREFIX" default:"weir:" help:"Start of every key in Redis."`
	StorePoolSize  int               `group:"store" env:"WEIR_STORE_POOL_SIZE" default:"0" help:"Most connections kept to Redis; 0 is ten for each CPU. Requests share calls, so that a few do."`
	NamedStores    map[string]string `name:"named-store" group:"store" env:"WEIR_NAMED_STORE" placeholder:"NAME=URL" help:"Another Redis for the limits with store: NAME; --store has to be a Redis, too. Repeat it, or separate by semicolons."`
	KnownDenials   bool              `group:"store" env:"WEIR_KNOWN_DENIALS" default:"true" negatable:"" help:"Answer what Redis has denied without asking it again, until it may pass."`
	OnStoreFailure string            `group:"store" env:"WEIR_ON_STORE_FAILURE" default:"allow" help:"What limits without on_store_failure do while Redis does not answer: allow, deny, or local, which counts in memory."`
	Replicas       int               `group:"store" env:"WEIR_REPLICAS" default:"1" help:"How many sidecars share the limits: each counts so much less with on_store_failure: local."`
	MemoryMaxKeys  int               `group:"store" env:"WEIR_MEMORY_MAX_KEYS" default:"4000000" help:"Most counters that are kept in memory: by the memory store, or while Redis does not answer."`

	GRPCAddr   string `name:"grpc-addr" group:"listen" env:"WEIR_GRPC_ADDR" default:":8081" help:"Where Envoy asks: host:port, :port or unix:PATH."`
	HTTPAddr   string `name:"http-addr" group:"listen" env:"WEIR_HTTP_ADDR" default:":8080" help:"Health, rules and metrics: host:port, :port or unix:PATH; empty for none."`
	Pprof      bool   `group:"listen" env:"WEIR_PPROF" help:"Also serve profiles of the process, for go tool pprof, at /debug/pprof/ of the HTTP address."`
	SocketMode string `group:"listen" env:"WEIR_SOCKET_MODE" default:"0660" help:"Permissions of Unix sockets."`

	GRPCTLSCert        string   `name:"grpc-tls-cert" group:"tls" env:"WEIR_GRPC_TLS_CERT" placeholder:"FILE" help:"Certificate of the gRPC address, in PEM: it then speaks TLS. Certificates, keys and authorities are read again as they change."`
	GRPCTLSKey         string   `name:"grpc-tls-key" group:"tls" env:"WEIR_GRPC_TLS_KEY" placeholder:"FILE" help:"Its key."`
	GRPCTLSClientCA    string   `name:"grpc-tls-client-ca" group:"tls" env:"WEIR_GRPC_TLS_CLIENT_CA" placeholder:"FILE" help:"Authorities, in PEM: clients need a certificate of one of them."`
	GRPCTLSClientNames []string `name:"grpc-tls-client-names" group:"tls" env:"WEIR_GRPC_TLS_CLIENT_NAMES" placeholder:"NAME" help:"Subject alternative names, such as spiffe://mesh/ns/edge/sa/envoy: a client's certificate needs to be for one of them. Repeat it, or separate by commas."`
	HTTPTLSCert        string   `name:"http-tls-cert" group:"tls" env:"WEIR_HTTP_TLS_CERT" placeholder:"FILE" help:"Certificate of the HTTP address, in PEM: it then speaks TLS."`
	HTTPTLSKey         string   `name:"http-tls-key" group:"tls" env:"WEIR_HTTP_TLS_KEY" placeholder:"FILE" help:"Its key."`
	HTTPTLSClientCA    string   `name:"http-tls-client-ca" group:"tls" env:"WEIR_HTTP_TLS_CLIENT_CA" placeholder:"FILE" help:"Authorities, in PEM: who changes something (POST, DELETE), takes a profile or sees values of keys needs a certificate of one of them, or the token."`
	HTTPTokenFile      string   `name:"http-token-file" group:"tls" env:"WEIR_HTTP_TOKEN_FILE" placeholder:"FILE" help:"A token: who changes something (POST, DELETE), takes a profile or sees values of keys needs it as Authorization: Bearer ..., or a certificate."`
	HTTPOpen           bool     `name:"http-open" group:"tls" env:"WEIR_HTTP_OPEN" help:"Let everybody who reaches the HTTP address change state and see values of keys. Without it, and without token and certificates, only this machine may (localhost, Unix socket)."`
	HTTPHosts          []string `name:"http-hosts" group:"tls" env:"WEIR_HTTP_HOSTS" placeholder:"NAME" help:"A name by which the HTTP address is asked, beside IP addresses and private names (without a dot, *.svc, *.local, *.internal, ...); .example.com for all that end so, * for all. Repeat it, or separate by commas."`

	GRPCMaxConnectionAge  time.Duration `name:"grpc-max-connection-age" group:"grpc" env:"WEIR_GRPC_MAX_CONNECTION_AGE" default:"30m" help:"Ask clients to connect again after this time, so that they spread over all sidecars; 0 for never."`
	GRPCMaxConnectionIdle time.Duration `name:"grpc-max-connection-idle" group:"grpc" env:"WEIR_GRPC_MAX_CONNECTION_IDLE" default:"10m" help:"Close a connection, gracefully, that had no request for this time; 0 for never."`
	GRPCMaxConnections    int           `name:"grpc-max-connections" group:"grpc" env:"WEIR_GRPC_MAX_CONNECTIONS" default:"0" help:"Most connections at once; one more closes the one that is idle the longest. 0 is what memory limit and file descriptors allow, at most 16384."`
	HTTPMaxConnections    int           `name:"http-max-connections" group:"grpc" env:"WEIR_HTTP_MAX_CONNECTIONS" default:"256" help:"The same of the HTTP address. 0 is an eighth of the file descriptors, at most 256."`
	GRPCReceiveTimeout    time.Duration `name:"grpc-receive-timeout" group:"grpc" env:"WEIR_GRPC_RECEIVE_TIMEOUT" default:"10s" help:"Reset a request that has not arrived whole in this time."`
	GRPCMaxReceiving      int           `name:"grpc-max-receiving" group:"grpc" env:"WEIR_GRPC_MAX_RECEIVING" default:"67108864" help:"Most memory of all requests that have not arrived whole, in bytes. Beyond it, those of the connection that has the most are reset."`
	GRPCMaxResets         int           `name:"grpc-max-resets" group:"grpc" env:"WEIR_GRPC_MAX_RESETS" default:"10000" help:"Close a connection whose client resets more requests than this in a second."`
	GRPCMaxStreams        uint32        `name:"grpc-max-streams" group:"grpc" env:"WEIR_GRPC_MAX_STREAMS" default:"1000" help:"Most requests at once on one connection."`
	GRPCMaxMessageSize    int           `name:"grpc-max-message-size" group:"grpc" env:"WEIR_GRPC_MAX_MESSAGE_SIZE" default:"1048576" help:"Largest request, in bytes. By default Envoy lets a request pass whose question is refused, so keep it above what its headers can make of it."`
	GRPCKeepaliveTime     time.Duration `name:"grpc-keepalive-time" group:"grpc" env:"WEIR_GRPC_KEEPALIVE_TIME" default:"1m" help:"Ping a client that has been silent for this time."`
	GRPCKeepaliveTimeout  time.Duration `name:"grpc-keepalive-timeout" group:"grpc" env:"WEIR_GRPC_KEEPALIVE_TIMEOUT" default:"10s" help:"Close the connection if the ping is not answered in this time."`
	MaxDescriptors        int           `group:"grpc" env:"WEIR_MAX_DESCRIPTORS" default:"128" help:"Most descriptors in a request."`
	MaxEntries            int           `group:"grpc" env:"WEIR_MAX_ENTRIES" default:"32" help:"Most entries in a descriptor."`
	MaxCounters           int           `group:"grpc" env:"WEIR_MAX_COUNTERS" default:"1024" help:"Most limits that a request may ask, of all its descriptors together; requests beyond are refused as InvalidArgument."`
	MaxHeld               int           `group:"grpc" env:"WEIR_MAX_HELD" default:"10000" help:"Most answers that leaky_queue and max_wait hold back at once; requests beyond are denied."`
	DynamicMetadata       bool          `group:"grpc" env:"WEIR_DYNAMIC_METADATA" help:"Add dynamic metadata to every response, and not only where a rule has metadata."`

	RatelimitHeaders         bool   `group:"headers" env:"WEIR_RATELIMIT_HEADERS" help:"Add response headers with the limit that is nearest, as envoyproxy/ratelimit does with LIMIT_RESPONSE_HEADERS_ENABLED."`
	RatelimitLimitHeader     string `group:"headers" env:"WEIR_RATELIMIT_LIMIT_HEADER" default:"RateLimit-Limit" help:"Name of the header with the requests per window."`
	RatelimitRemainingHeader string `group:"headers" env:"WEIR_RATELIMIT_REMAINING_HEADER" default:"RateLimit-Remaining" help:"Name of the header with the requests that remain."`
	RatelimitResetHeader     string `group:"headers" env:"WEIR_RATELIMIT_RESET_HEADER" default:"RateLimit-Reset" help:"Name of the header with the seconds until the counter is as new, or until a denied request would pass."`

	DecisionLog             string  `group:"decisions" env:"WEIR_DECISION_LOG" placeholder:"stdout|stderr|FILE" help:"Write what is decided, a line of JSON for each of a sample of requests; see docs/operations.md."`
	DecisionLogSample       float64 `group:"decisions" env:"WEIR_DECISION_LOG_SAMPLE" default:"0.01" help:"Share of requests to write, from 0 to 1."`
	DecisionLogSampleDenied float64 `group:"decisions" env:"WEIR_DECISION_LOG_SAMPLE_DENIED" default:"1" help:"The same of requests in which a limit did not fit, also in shadow or quota mode."`
	DecisionLogRate         int     `group:"decisions" env:"WEIR_DECISION_LOG_RATE" default:"1000" help:"Most lines a second; what is beyond is dropped and counted."`
	DecisionLogValues       string  `group:"decisions" env:"WEIR_DECISION_LOG_VALUES" default:"hash" help:"How values of descriptors are written: plain, hash (HMAC-SHA256) or none."`
	DecisionLogKeyFile      string  `group:"decisions" env:"WEIR_DECISION_LOG_KEY_FILE" placeholder:"FILE" help:"The secret of the hashes, 16 bytes or more, so that all sidecars write the same; without it, a random one of this process."`

	MetricsMaxRules int           `group:"metrics" env:"WEIR_METRICS_MAX_RULES" default:"10000" help:"Most rules with series of their own in GET /metrics; those beyond count together as (other)."`
	NearLimitRatio  float64       `group:"metrics" env:"WEIR_NEAR_LIMIT_RATIO" default:"0.8" help:"Part of a limit above which an allowed hit counts as near the limit."`
	ClassicMetrics  bool          `group:"metrics" env:"WEIR_CLASSIC_METRICS" help:"Also show the metrics of envoyproxy/ratelimit by their names (ratelimit_service_rate_limit_total_hits, ...), for dashboards that use them."`
	StatsdAddr      string        `group:"metrics" env:"WEIR_STATSD_ADDR" placeholder:"ADDR" help:"Send the metrics by statsd, too: udp://HOST:PORT or unix:///PATH."`
	StatsdFormat    string        `group:"metrics" env:"WEIR_STATSD_FORMAT" default:"statsd" help:"statsd, with labels as parts of the name, or dogstatsd, with labels as tags."`
	StatsdPrefix    string        `group:"metrics" env:"WEIR_STATSD_PREFIX" default:"weir." help:"Start of every name in statsd."`
	StatsdInterval  time.Duration `group:"metrics" env:"WEIR_STATSD_INTERVAL" default:"10s" help:"How often to send."`
	StatsdTags      []string      `name:"statsd-tag" group:"metrics" env:"WEIR_STATSD_TAG" placeholder:"NAME:VALUE" help:"A tag on everything that is sent, with dogstatsd. Repeat it, or separate by commas."`

	OTelTraces  bool `name:"otel-traces" group:"otel" env:"WEIR_OTEL_TRACES" help:"Send traces by OTLP over gRPC. OTEL_EXPORTER_OTLP_ENDPOINT says where to, OTEL_TRACES_SAMPLER which requests; those that Envoy traces if left out."`
	OTelMetrics bool `name:"otel-metrics" group:"otel" env:"WEIR_OTEL_METRICS" help:"Send the metrics of /metrics by OTLP over gRPC, every OTEL_METRIC_EXPORT_INTERVAL (60000 ms)."`

	DrainDelay  time.Duration `group:"stop" env:"WEIR_DRAIN_DELAY" default:"2s" help:"How long to go on answering after SIGTERM while /readyz and health checks say no, so that clients go elsewhere."`
	StopTimeout time.Duration `group:"stop" env:"WEIR_STOP_TIMEOUT" default:"5s" help:"How long requests in flight may take to end after that."`

	TopKeys     int  `group:"top" env:"WEIR_TOP_KEYS" default:"100" help:"How many keys to count for each rule, for the busiest and the most denied (GET /top, weir top); 0 for none."`
	TopKeysHash bool `group:"top" env:"WEIR_TOP_KEYS_HASH" help:"Show hashes in place of the values of keys, as hash_values does."`

	HoldGC   func() (release func()) `kong:"-"`
	Build    app.Build               `kong:"-"`
	Log      *slog.Logger            `kong:"-"`
	LogStats func() app.LogStats     `kong:"-"`
}

// Help is shown below the one line of it.
func (*serveCmd) Help() string {
	return `SIGHUP, weir reload or POST /reload reads the rule files at once. SIGTERM and SIGINT stop after the requests
in flight; a second one stops at once.

Examples:

    weir serve --rules /etc/weir/rules
    WEIR_STORE=redis://:secret@redis:6379/0 weir serve --rules shop.yaml --rules api.yaml --log-format json
    WEIR_STORE=redis://:secret@redis:6379/0 weir serve --rules store
    weir serve --rules /etc/weir/rules --print-config`
}

// Run serves until a signal.
func (c *serveCmd) Run(ctx context.Context, io streams, command *kong.Context) error {
	o := app.Options(c.Options)
	if c.PrintConfig {
		if err := printConfig(io, command); err != nil {
			return err
		}
	}
	if err := c.validate(&o); err != nil {
		return &usageError{err: err, command: "weir serve"}
	}
	if c.PrintConfig {
		return nil
	}
	signal.Ignore(syscall.SIGPIPE) // whoever reads a log may go; requests are answered all the same
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // from the start on: by default it ends the process
	defer signal.Stop(hangup)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal ends the process

	log, err := newProcessLog(io.err, c.LogLevel, c.LogFormat) //nolint:contextcheck // it goes on when ctx is done
	if err != nil {
		return err
	}
	o.Log, o.LogStats, o.Build = log.Logger, log.stats, build()
	if err = endInTime(ctx, &o, func() error { return serve(ctx, o, hangup) }); err != nil {
		report(log, err)
		err = errTold
	}
	log.Close()
	return err
}

// endInTime returns what f does, or an error when f has not ended a while after ctx has, whatever hangs.
func endInTime(ctx context.Context, o *app.Options, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	late := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(o.DrainDelay+o.StopTimeout+app.StopBound, func() { close(late) })
	})()
	select {
	case err := <-ended:
		return err
	case <-late:
		return errors.New("the process was told to stop and something in it hangs: it ends without that")
	}
}

// serve is the App from its start to its end.
func serve(ctx context.Context, o app.Options, hangup <-chan os.Signal) error {
	pace, err := gcpace.Start()
	if err != nil {
		o.Log.LogAttrs(ctx, slog.LevelWarn, "the container's memory limit cannot be read, GOMEMLIMIT is not set", slog.String("error", err.Error()))
	}
	defer pace.Stop()
	o.HoldGC = pace.Hold
	warnVariables(ctx, o.Log)

	a, err := app.New(ctx, o)
	if err != nil {
		return err
	}
	go reloadOn(ctx, hangup, a)
	return errors.Join(a.Run(ctx), a.Close())
}

// validate checks the options, and that the rules' paths are there unless the start may be without rules.
func (c *serveCmd) validate(o *app.Options) error {
	if err := o.Validate(); err != nil || o.AllowEmptyRules {
		return err
	}
	paths := slices.DeleteFunc(slices.Clone(o.Rules), func(path string) bool { return path == "store" })
	if err := checkPaths(paths); err != nil {
		return fmt.Errorf("--rules: %w", err)
	}
	return nil
}

// reloadOn reads the rules again at each signal until ctx is done. What became of it is in the log.
func reloadOn(ctx context.Context, hangup <-chan os.Signal, a *app.App) {
	for {
		select {
		case <-hangup:
			_ = a.Reload(ctx) // logged by the App
		case <-ctx.Done():
			return
		}
	}
}
