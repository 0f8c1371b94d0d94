package store

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

const (
	// topologyReload is the interval at which a cluster's client reloads the slots while no call fails.
	topologyReload = 10 * time.Second
	// topologyTimeout is the minimum timeout of queries for the master. A request that waits keeps its own deadline.
	topologyTimeout = 250 * time.Millisecond
	// commandTimeout bounds each call for which no request waits. Published rules have up to 1 MiB.
	commandTimeout = 5 * time.Second
)

// Redis is a client of a server, of the master behind sentinels, or of a cluster. It is safe for concurrent use.
type Redis struct {
	Client redis.UniversalClient

	url         string
	o           redisstore.Options // includes the options in the URL, and the name that Counters got
	credentials *credentials
}

// Connect returns a client for a URL in one of Forms, for a store with these options. Prefix and timeout in the URL
// override them. It does not connect, so an error concerns the URL or a file that the URL names. It runs the URL's
// password_command, for at most 30 s; calls return its error. It turns off the log of go-redis in the whole process,
// because calls return the same errors. ctx ends only the password_command and the reading of files.
func Connect(ctx context.Context, url string, o redisstore.Options) (*Redis, error) {
	return connect(ctx, url, o, 0, 0, nil)
}

// ConnectForCommand is Connect for commands for which no request waits: it uses few connections and a long timeout.
func ConnectForCommand(ctx context.Context, url, keyPrefix string) (*Redis, error) {
	return connect(ctx, url, redisstore.Options{KeyPrefix: keyPrefix}, commandTimeout, 2, nil)
}

// connect is Connect with a minimum timeout and, unless the URL sets it, a maximum number of connections. 0 connections
// means 10 per CPU or, in a cluster, 5 per CPU per node. c are the credentials of another client, or nil.
func connect(
	ctx context.Context, url string, o redisstore.Options, least time.Duration, connections int, c *credentials,
) (*Redis, error) {
	a, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	a.credentials = cmp.Or(c, a.credentials)
	a.client.PoolSize = cmp.Or(a.client.PoolSize, connections)
	o.Server, o.Proxy = Redact(url), a.proxy
	o.KeyPrefix = cmp.Or(a.keyPrefix, o.KeyPrefix, redisstore.DefaultKeyPrefix)
	o.Timeout = max(cmp.Or(a.timeout, o.Timeout, redisstore.DefaultTimeout), least)
	silence()
	client, err := a.newClient(ctx, &o)
	return &Redis{client, url, o, a.credentials}, err
}

// ForCommands calls ConnectForCommand for the same Redis, with the same credentials. The caller closes the result.
func (r *Redis) ForCommands(ctx context.Context) (*Redis, error) {
	return connect(ctx, r.url, redisstore.Options{KeyPrefix: r.o.KeyPrefix}, commandTimeout, 2, r.credentials)
}

// silence turns off the log of go-redis, which goes to standard error.
var silence = sync.OnceFunc(logging.Disable)

// Close closes all connections.
func (r *Redis) Close() error { return r.Client.Close() }

// String returns the server's URL, without user and password.
func (r *Redis) String() string { return r.o.Server }

// Proxied reports whether the servers are behind a proxy, which does not forward subscriptions.
func (r *Redis) Proxied() bool { return r.o.Proxy }

// Prefix returns the prefix of all keys of this format version: "weir:1:".
func (r *Redis) Prefix() string { return r.o.KeyPrefix + redisstore.FormatVersion }

// Counters returns a store of counters on these connections. name is its name in limits.
func (r *Redis) Counters(name string) (*redisstore.Store, error) {
	r.o.Name = name
	return redisstore.New(r.Client, r.o)
}

// newClient creates the client. It does not connect.
func (a *address) newClient(ctx context.Context, o *redisstore.Options) (redis.UniversalClient, error) {
	u, err := a.options(ctx, o)
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

// options returns the options of the client. It reads the files that the URL names, to find errors early.
func (a *address) options(ctx context.Context, o *redisstore.Options) (*redis.UniversalOptions, error) {
	u := &a.client
	u.Username, u.Password = a.credentials.user, a.credentials.password
	u.MaxRetries = -1      // a repeated call could be counted twice
	u.MinRetryBackoff = -1 // no wait before a redirected call
	u.MaxRetryBackoff = -1
	u.DialerRetries = 1
	u.ContextTimeoutEnabled = true
	u.ReadTimeout, u.WriteTimeout, u.PoolTimeout = max(o.Timeout, redisstore.LateAnswer), o.Timeout, o.Timeout
	// A dial continues after its request has timed out, and serves later requests.
	u.DialTimeout = cmp.Or(u.DialTimeout, max(time.Second, o.Timeout))
	u.PipelinePoolSize = -1
	u.Protocol, u.DisableIdentity = 2, true
	u.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if a.deployment == sentinel || a.deployment == cluster {
		u.ReadTimeout = max(o.Timeout, topologyTimeout)
	}
	d := &dialer{Dialer: net.Dialer{Timeout: u.DialTimeout}, proxy: a.proxy}
	if c := a.credentials; c.change() {
		u.CredentialsProviderContext, d.credentials = c.provide, c
		if err := c.start(ctx); err != nil {
			return nil, err
		}
	}
	if !o.UntilDeadline { // otherwise the request's deadline applies
		d.answer = o.Timeout
	}
	if a.tls {
		if _, err := a.tlsFiles.config(ctx); err != nil {
			return nil, err
		}
		d.tls = &a.tlsFiles
	}
	u.Dialer = d.dial
	return u, nil
}
