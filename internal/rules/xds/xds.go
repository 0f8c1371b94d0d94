// Package xds is a source of rules from a control plane such as Envoy Gateway. The control plane sends them by ADS
// (state of the world), as resources of type ratelimit.config.ratelimit.v3.RateLimitConfig. A Source keeps the stream
// open, accepts the valid domains of each response, and passes each domain on as a file to a reload.Reloader.
package xds

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

var _ reload.Source = (*Source)(nil)

// Scheme is the prefix of the name of every file of a Source.
const Scheme = "xds://"

// Options has the flags for the control plane.
type Options struct {
	Server       string            `env:"SERVER" placeholder:"HOST:PORT" help:"For --rules xds: control plane that sends rate limit configurations by ADS, such as envoy-gateway:18001."`
	NodeID       string            `env:"NODE_ID" default:"weir" help:"Node id, by which the server selects the rules."`
	NodeMetadata map[string]string `env:"NODE_METADATA" placeholder:"NAME=VALUE" help:"Metadata of the node. Repeatable."`
	Headers      map[string]string `name:"header" env:"HEADER" placeholder:"NAME=VALUE" help:"A header for each stream to the server, such as authorization. Repeatable."`
	UseTLS       bool              `name:"tls" env:"TLS" help:"Use TLS 1.2 or newer. Weir reads the certificate files again for each connection."`
	TLS          TLS               `embed:"" prefix:"tls-" envprefix:"TLS_"`
	// MaxSize is the maximum size of a response in bytes. A larger response is refused before it is decoded.
	MaxSize int64        `kong:"-"`
	Log     *slog.Logger `kong:"-"`

	// unit is the first wait between reconnects, NACKs and responses; 0 means a second. Tests shorten it.
	unit time.Duration `kong:"-"`
}

// Check validates the flags. isUsed reports whether --rules names the control plane.
func (o *Options) Check(e *flags.Errors, isUsed bool) {
	e.Check(!isUsed || o.Server != "", "--rules", "%s means the rules of a control plane and needs "+
		"--xds-server HOST:PORT; write ./%s for a directory with this name", "xds", "xds")
	if o.Server == "" {
		return
	}
	e.Check(isUsed, "--xds-server", "needs --rules %s", "xds")
	host, port, err := net.SplitHostPort(o.Server)
	e.Check(err == nil && host != "" && port != "", "--xds-server", "must be host:port, such as envoy-gateway:18001, "+
		"got %q", o.Server)
	e.Check(o.NodeID != "", "--xds-node-id", "must not be empty, because the server identifies its clients by it")
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		// The message does not repeat an invalid name, which may hold a secret, as in authorization: Basic c2VjcmV0Cg==
		e.Check(flags.IsHeader(name), "--xds-header", "the part before the first = must be a header name of "+
			"letters, digits and -; write NAME=VALUE")
		// gRPC reserves this prefix.
		e.Check(!strings.HasPrefix(strings.ToLower(name), "grpc-"), "--xds-header", "the name must not begin with grpc-")
	}
	e.Check((o.TLS.Cert == "") == (o.TLS.Key == ""), "--xds-tls-cert", "needs --xds-tls-key, and the other way round")
	e.Check(o.UseTLS || o.TLS.Cert == "" && o.TLS.CA == "" && o.TLS.ServerName == "", "--xds-tls",
		"is not set, so that --xds-tls-cert, --xds-tls-ca and --xds-tls-server-name have no effect; "+
			"add --xds-tls, or remove them")
}

// Times.
const (
	// firstRules is how long a start waits for the first rules; firstRulesAllowEmpty applies if rules may be empty.
	firstRules           = 15 * time.Second
	firstRulesAllowEmpty = 2 * time.Second
	// lineEvery is the minimum interval of log lines about the connection, and of lines about refused responses.
	lineEvery = 10 * time.Second
	closeWait = 500 * time.Millisecond
)

// Source holds the rules that a server sent. Its methods are safe for concurrent use.
type Source struct {
	o       Options
	process descriptors.Process
	cancel  context.CancelFunc
	ended   chan struct{} // closed when follow has returned; nil before Start
	first   chan struct{} // closed by hasRules when the first response was accepted
	changed chan struct{} // hints for Watch; capacity 1

	hasRules                               sync.Once
	outageLine, connectedLine, refusedLine logging.Every

	mu       sync.Mutex
	accepted accepted
	snapshot reload.Snapshot
	status   adminapi.XDSStatus
	outage   string // why there is no stream; empty if there is one
}

// New returns a Source. Start connects it.
func New(o Options) *Source {
	o.unit, o.MaxSize = cmp.Or(o.unit, time.Second), cmp.Or(o.MaxSize, reload.DefaultMaxSize)
	return &Source{
		o: o, first: make(chan struct{}), changed: make(chan struct{}, 1),
		outageLine: logging.Every{Interval: lineEvery}, connectedLine: logging.Every{Interval: lineEvery},
		refusedLine: logging.Every{Interval: lineEvery},
		status:      adminapi.XDSStatus{Server: Scheme + o.Server}, outage: "not connected yet",
	}
}

// Start connects in the background and waits for the first rules, up to firstRules or, with allowEmpty, up to
// firstRulesAllowEmpty. process has the process-wide settings of rules. Start must be called at most once.
func (s *Source) Start(ctx context.Context, process descriptors.Process, allowEmpty bool) {
	s.process = process
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel, s.ended = cancel, make(chan struct{})
	go func() {
		defer close(s.ended)
		panics.Restart(background.Done(), "xDS stream", func() { s.follow(background) })
	}()
	wait := firstRules
	if allowEmpty {
		wait = firstRulesAllowEmpty
	}
	select {
	case <-s.first:
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// Close ends the stream. It waits up to closeWait for work on a response; longer work goes on, but holds only memory.
func (s *Source) Close() error {
	if s.ended == nil {
		return nil
	}
	s.cancel()
	select {
	case <-s.ended:
	case <-time.After(closeWait):
	}
	return nil
}

// Read implements reload.Source. It returns the domains that were accepted last, even while the server is unreachable.
// Before the first response it returns an error.
func (s *Source) Read(context.Context) (reload.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.first:
		return s.snapshot, nil
	default:
	}
	why := s.outage
	if why == "" {
		why = fmt.Sprintf("connected, but the server has not sent rules for node %q", s.o.NodeID)
	}
	if len(s.status.Findings) > 0 {
		why = s.status.Findings[0]
	}
	return reload.Snapshot{}, errors.New("--rules xds: no rules from " + Scheme + s.o.Server + " yet: " + why)
}

// Watch implements reload.Source, for one watcher at a time. It sends a hint after each response that changes rules.
func (s *Source) Watch(ctx context.Context, changed chan<- struct{}) {
	for {
		reload.Hint(changed)
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
	}
}

// Status returns the state of the stream and of its last response.
func (s *Source) Status() *adminapi.XDSStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Connected, status.Error = s.outage == "", s.outage
	status.Findings = slices.Clone(status.Findings)
	return &status
}

// TLS has the names of files in PEM. Weir reads the files for each connection, so they can be renewed.
type TLS struct {
	Cert       string `env:"CERT" placeholder:"FILE" help:"Client certificate, in PEM."`
	Key        string `env:"KEY" placeholder:"FILE" help:"Private key of --xds-tls-cert, in PEM."`
	CA         string `name:"ca" env:"CA" placeholder:"FILE" help:"Certificate authorities for the server, in PEM; default: the system's."`
	ServerName string `env:"SERVER_NAME" placeholder:"NAME" help:"Name in the server's certificate; default: the host of --xds-server."`
}

// credentials returns the credentials for one connection. If the files cannot be read, for instance because only one of
// two was replaced so far, it returns the last credentials.
func (s *Source) credentials(ctx context.Context, last **tls.Config) (credentials.TransportCredentials, error) {
	if !s.o.UseTLS {
		return insecure.NewCredentials(), nil
	}
	config, err := fileread.ClientTLS(ctx, "--xds-tls-", s.o.TLS.CA, s.o.TLS.Cert, s.o.TLS.Key)
	switch {
	case err == nil:
		config.ServerName = s.o.TLS.ServerName
		*last = config
	case *last == nil:
		return nil, err
	}
	return credentials.NewTLS(*last), nil
}
