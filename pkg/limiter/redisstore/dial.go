package redisstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weir-ratelimit/weir/pkg/fileread"
)

const (
	// reload is how long a cluster's client believes who has which slot if nothing fails.
	reload = 10 * time.Second
	// reading is how long the certificates of a connection may take to be read, before the last ones serve.
	reading = 250 * time.Millisecond
	// telling is the least time that sentinels and nodes have to say who is the master, behind the requests that wait for
	// it, and have a deadline of their own.
	telling = 250 * time.Millisecond
)

// open makes the client. It does not connect.
func (a *address) open(o *Options) (redis.UniversalClient, error) {
	u := &redis.UniversalOptions{
		Addrs: a.hosts, DB: a.db, Username: a.user, Password: a.password, OnConnect: name,
		MasterName: a.master, SentinelUsername: a.sentinelUser, SentinelPassword: a.sentinelPassword,

		MaxRetries:            -1, // a call that was sent may have been counted: sending it again would count twice
		MinRetryBackoff:       -1, // what another server is to be asked is asked at once
		MaxRetryBackoff:       -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		ReadTimeout:           o.Timeout, WriteTimeout: o.Timeout, PoolTimeout: o.Timeout,
		// Connecting goes on behind a Take that gave up, and serves the next one.
		DialTimeout: max(time.Second, o.Timeout),

		PoolSize: o.PoolSize, MinIdleConns: a.minIdle, PipelinePoolSize: -1,
		ConnMaxIdleTime: a.connIdle, ConnMaxLifetime: a.connLifetime,
		Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if a.dialTimeout != 0 {
		u.DialTimeout = a.dialTimeout
	}
	if a.passwordFile != "" {
		u.CredentialsProviderContext = a.credentials
		if _, _, err := a.credentials(context.Background()); err != nil {
			return nil, fmt.Errorf("redis store: %w", err)
		}
	}
	dialer := &net.Dialer{Timeout: u.DialTimeout}
	dial := dialer.DialContext
	if a.tls {
		if _, err := a.tlsFiles.config(context.Background()); err != nil {
			return nil, fmt.Errorf("redis store: %w", err)
		}
		dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return a.tlsFiles.dial(ctx, dialer, network, addr)
		}
	}
	dial = boundedReplies(dial)
	if a.way == sentinel || a.way == cluster {
		u.ReadTimeout = max(u.ReadTimeout, telling)
	}
	if a.user == "" && a.password == "" && a.passwordFile == "" {
		dial, u.OnConnect = introduced(dial, o.Timeout), nil
	}
	u.Dialer = undaunted(dial)
	switch a.way {
	case sentinel:
		return redis.NewFailoverClient(u.Failover()), nil
	case cluster:
		c := u.Cluster()
		c.DisableRoutingPolicies = true
		c.ClusterStateReloadInterval = reload
		return redis.NewClusterClient(c), nil
	case socket:
		s := u.Simple()
		s.Network = "unix"
		return redis.NewClient(s), nil
	default:
		return redis.NewClient(u.Simple()), nil
	}
}

// credentials are read anew for each connection, so that a password can change.
func (a *address) credentials(ctx context.Context) (user, password string, err error) {
	text, err := fileread.ReadFile(ctx, a.passwordFile)
	if err != nil {
		return "", "", fmt.Errorf("password_file: %w", err)
	}
	return a.user, strings.TrimRight(string(text), "\r\n"), nil
}

// tlsFiles are the certificates of connections with TLS. They are read anew for each connection, so that they can be
// renewed; while they cannot be read, for instance because only one of the two has been written, the last ones serve.
type tlsFiles struct {
	ca, cert, key string // paths; empty for the system's authorities, and for no certificate of our own
	serverName    string // empty: the host's
	last          atomic.Pointer[tls.Config]
}

// dial connects and shakes hands.
func (f *tlsFiles) dial(ctx context.Context, dialer *net.Dialer, network, addr string) (net.Conn, error) {
	short, cancel := context.WithTimeout(ctx, reading)
	defer cancel()
	config, err := f.config(short)
	if err != nil {
		if config = f.last.Load(); config == nil {
			return nil, err
		}
	}
	return (&tls.Dialer{NetDialer: dialer, Config: config}).DialContext(ctx, network, addr)
}

func (f *tlsFiles) config(ctx context.Context) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.serverName}
	if f.ca != "" {
		text, err := fileread.ReadFile(ctx, f.ca)
		if err != nil {
			return nil, fmt.Errorf("tls_ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("tls_ca: " + f.ca + " has no certificate in PEM")
		}
	}
	if f.cert != "" {
		own, err := fileread.X509KeyPair(ctx, f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("tls_cert and tls_key: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	f.last.Store(config)
	return config, nil
}
