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
	"github.com/redis/go-redis/v9/logging"
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

	url string
	o   redisstore.Options // with what the URL says
}

// Connect makes the client of a URL, which has one of Forms, for a store with these options. What the URL says of
// prefix and timeout overrides them. It does not connect yet: an error is about the URL, or a file that it names. It
// turns off the log of go-redis for the whole process: what it would write comes back as an error of a call.
func Connect(url string, o redisstore.Options) (*Redis, error) { return connect(url, o, 0, 0) }

// ConnectForCommand is Connect for commands that no request waits for: few connections, on which a call may take long.
func ConnectForCommand(url, keyPrefix string) (*Redis, error) {
	return connect(url, redisstore.Options{KeyPrefix: keyPrefix}, commandTimeout, 2)
}

// connect is Connect with the least timeout, and the most connections unless the URL says so. 0 connections are 10 per
// CPU; in a cluster, 5 per CPU to each node.
func connect(url string, o redisstore.Options, least time.Duration, connections int) (*Redis, error) {
	a, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	a.client.PoolSize = cmp.Or(a.client.PoolSize, connections)
	o.Server, o.Proxy = Redact(url), a.proxy
	o.KeyPrefix = cmp.Or(a.keyPrefix, o.KeyPrefix, redisstore.DefaultKeyPrefix)
	o.Timeout = max(cmp.Or(a.timeout, o.Timeout, redisstore.DefaultTimeout), least)
	silence()
	client, err := a.newClient(&o)
	return &Redis{client, url, o}, err
}

// ForCommands is ConnectForCommand to the same Redis. The caller closes it.
func (r *Redis) ForCommands() (*Redis, error) { return ConnectForCommand(r.url, r.o.KeyPrefix) }

// silence turns the log of go-redis off, which writes to standard error.
var silence = sync.OnceFunc(logging.Disable)

// Close ends all connections.
func (r *Redis) Close() error { return r.Client.Close() }

// String names the server, without user and password.
func (r *Redis) String() string { return r.o.Server }

// Proxied reports whether a proxy is in front of the servers. It passes on no subscription.
func (r *Redis) Proxied() bool { return r.o.Proxy }

// Prefix starts the keys of this release: "weir:1:".
func (r *Redis) Prefix() string { return r.o.KeyPrefix + redisstore.FormatVersion }

// Counters returns the store of counters on these connections. Limits name it so.
func (r *Redis) Counters(name string) (*redisstore.Store, error) {
	o := r.o
	o.Name = name
	return redisstore.New(r.Client, o)
}

// newClient makes the client. It does not connect.
func (a *address) newClient(o *redisstore.Options) (redis.UniversalClient, error) {
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
func (a *address) options(o *redisstore.Options) (*redis.UniversalOptions, error) {
	u := &a.client
	u.MaxRetries = -1      // a call that was sent may have been counted: a second one would count twice
	u.MinRetryBackoff = -1 // a redirected call goes to the other server at once
	u.MaxRetryBackoff = -1
	u.DialerRetries = 1
	u.ContextTimeoutEnabled = true
	u.ReadTimeout, u.WriteTimeout, u.PoolTimeout = max(o.Timeout, redisstore.LateAnswer), o.Timeout, o.Timeout
	// Connecting goes on behind a request that gave up, and serves the next one.
	u.DialTimeout = cmp.Or(u.DialTimeout, max(time.Second, o.Timeout))
	u.PipelinePoolSize = -1
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
