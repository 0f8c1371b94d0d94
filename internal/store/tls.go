package store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/fileread"
)

// readTimeout is how long the certificates of a connection may take to be read, before the last ones serve.
const readTimeout = 250 * time.Millisecond

// tlsFiles are the certificates of connections with TLS. They are read for each connection, so that they can be
// renewed. While they cannot be read, for instance because only one of the two has been written, the last ones serve.
type tlsFiles struct {
	ca, cert, key string // paths; empty for the system's authorities, and for no certificate of our own
	serverName    string // empty: the host's
	skipHostname  bool   // the chain is verified, and not that the certificate has the server's name
	last          atomic.Pointer[tls.Config]
}

// dial connects and shakes hands.
func (f *tlsFiles) dial(ctx context.Context, dialer *net.Dialer, network, addr string) (net.Conn, error) {
	short, cancel := context.WithTimeout(ctx, readTimeout)
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
	config, err := fileread.ClientTLS(ctx, "tls_", f.ca, f.cert, f.key)
	if err != nil {
		return nil, err
	}
	config.ServerName = f.serverName
	if f.skipHostname {
		verifyChainOnly(config)
	}
	f.last.Store(config)
	return config, nil
}

// verifyChainOnly has a connection accept each certificate of the authorities, whatever name it has.
func verifyChainOnly(config *tls.Config) {
	config.InsecureSkipVerify = true // VerifyConnection verifies the chain
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("the server has shown no certificate")
		}
		o := x509.VerifyOptions{Roots: config.RootCAs, Intermediates: x509.NewCertPool()}
		for _, c := range state.PeerCertificates[1:] {
			o.Intermediates.AddCert(c)
		}
		_, err := state.PeerCertificates[0].Verify(o)
		return err
	}
}
