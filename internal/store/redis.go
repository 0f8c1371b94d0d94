package store

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

const (
	// topologyReload is how long a cluster's client uses what it knows of the slots, if nothing fails.
	topologyReload = 10 * time.Second
	// topologyTimeout is the least time that sentinels and nodes have to say who is the master. Requests that wait for it
	// have a deadline of their own.
	topologyTimeout = 250 * time.Millisecond
	// commandTimeout bounds each call that no request waits for. Published rules have up to 1 MiB.
	commandTimeout = 5 * time.Second
)

// Redis is the connections to a server, to the master behind sentinels, or to a cluster. It is safe for concurrent use.
type Redis struct {
	Client redis.UniversalClient

	o       RedisOptions // with what the URL says
	proxied bool
}

// RedisOptions say which Redis. What the URL says of prefix, timeout and pool overrides the other fields.
type RedisOptions struct {
	// URL has one of Forms.
	URL string
	// KeyPrefix starts each key. Empty is redisstore.DefaultKeyPrefix.
	KeyPrefix string
	// Timeout bounds each round trip. 0 is redisstore.DefaultTimeout.
	Timeout time.Duration
	// UntilDeadline is redisstore.Options.UntilDeadline.
	UntilDeadline bool
	// MinTimeout is the least that Timeout is, whatever the URL says: for a client that decides no requests.
	MinTimeout time.Duration
	// PoolSize is the most connections kept at once; with a cluster, to each node. 0 is 10 per CPU, and 5 with a cluster.
	PoolSize int
}

// Connect makes the client of a URL. It does not connect yet: an error is about the URL, or a file that it names. It
// turns off the log of go-redis for the whole process: what it would write comes back as an error of a call.
func Connect(o RedisOptions) (*Redis, error) {
	a, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	o.KeyPrefix = cmp.Or(a.keyPrefix, o.KeyPrefix, redisstore.DefaultKeyPrefix)
	o.Timeout = cmp.Or(a.timeout, o.Timeout, redisstore.DefaultTimeout)
	o.PoolSize = cmp.Or(a.client.PoolSize, o.PoolSize)
	if o.Timeout < 0 || o.PoolSize < 0 {
		return nil, fmt.Errorf("redis store: timeout and pool size must not be negative, got %s and %d",
			o.Timeout, o.PoolSize)
	}
	o.Timeout = max(o.Timeout, o.MinTimeout)
	silence()
	client, err := a.newClient(&o)
	return &Redis{Client: client, o: o, proxied: a.proxy}, err
}

// ConnectForCommand is Connect for commands that no request waits for: few connections, on which a call may take long.
func ConnectForCommand(url, keyPrefix string) (*Redis, error) {
	return Connect(RedisOptions{URL: url, KeyPrefix: keyPrefix, MinTimeout: commandTimeout, PoolSize: 2})
}

// ForCommands is ConnectForCommand to the same Redis. The caller closes it.
func (r *Redis) ForCommands() (*Redis, error) { return ConnectForCommand(r.o.URL, r.o.KeyPrefix) }

// silence turns the log of go-redis off, which writes to standard error.
var silence = sync.OnceFunc(func() { redis.SetLogger(discard{}) })

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// Close ends all connections.
func (r *Redis) Close() error { return r.Client.Close() }

// String names the server, without user and password.
func (r *Redis) String() string { return Redact(r.o.URL) }

// Proxied reports whether a proxy is in front of the servers. It passes on no subscription.
func (r *Redis) Proxied() bool { return r.proxied }

// Prefix starts the keys of this release: "weir:1:".
func (r *Redis) Prefix() string { return r.o.KeyPrefix + redisstore.FormatVersion }

// Counters returns the store of counters on these connections. Name and Now of the options are used.
func (r *Redis) Counters(o redisstore.Options) (*redisstore.Store, error) {
	o.Server, o.KeyPrefix, o.Timeout = r.String(), r.o.KeyPrefix, r.o.Timeout
	o.UntilDeadline, o.Proxy = r.o.UntilDeadline, r.proxied
	return redisstore.New(r.Client, o)
}

// newClient makes the client. It does not connect.
func (a *address) newClient(o *RedisOptions) (redis.UniversalClient, error) {
	u, err := a.options(o)
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	switch a.deployment {
	case sentinel:
		return redis.NewFailoverClient(u.Failover()), nil
	case cluster:
		c := u.Cluster()
		c.DisableRoutingPolicies = true
		c.ClusterStateReloadInterval = topologyReload
		return redis.NewClusterClient(c), nil
	case socket:
		s := u.Simple()
		s.Network = "unix"
		return redis.NewClient(s), nil
	default:
		return redis.NewClient(u.Simple()), nil
	}
}

// options are those of the client. It reads the files that the URL names once, to find errors.
func (a *address) options(o *RedisOptions) (*redis.UniversalOptions, error) {
	u := &a.client
	u.MaxRetries = -1      // a call that was sent may have been counted: a second one would count twice
	u.MinRetryBackoff = -1 // a redirected call goes to the other server at once
	u.MaxRetryBackoff = -1
	u.DialerRetries = 1
	u.ContextTimeoutEnabled = true
	u.ReadTimeout, u.WriteTimeout, u.PoolTimeout = max(o.Timeout, redisstore.LateAnswer), o.Timeout, o.Timeout
	// Connecting goes on behind a request that gave up, and serves the next one.
	u.DialTimeout = cmp.Or(u.DialTimeout, max(time.Second, o.Timeout))
	u.PoolSize, u.PipelinePoolSize = o.PoolSize, -1
	u.Protocol, u.DisableIdentity = 2, true
	u.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if a.deployment == sentinel || a.deployment == cluster {
		u.ReadTimeout = max(o.Timeout, topologyTimeout)
	}
	if a.passwordFile != "" {
		u.CredentialsProviderContext = a.credentials
		if _, _, err := a.credentials(context.Background()); err != nil {
			return nil, err
		}
	}
	d := &dialer{Dialer: net.Dialer{Timeout: u.DialTimeout}, proxy: a.proxy}
	if !o.UntilDeadline { // else a call ends when its request does
		d.answer = o.Timeout
	}
	if a.tls {
		if _, err := a.tlsFiles.config(context.Background()); err != nil {
			return nil, err
		}
		d.tls = &a.tlsFiles
	}
	u.Dialer = d.dial
	return u, nil
}

// credentials reads the password for each connection, so that it can change.
func (a *address) credentials(ctx context.Context) (user, password string, err error) {
	text, err := fileread.ReadFile(ctx, a.passwordFile)
	if err != nil {
		return "", "", fmt.Errorf("password_file: %w", err)
	}
	return a.client.Username, strings.TrimRight(string(text), "\r\n"), nil
}
