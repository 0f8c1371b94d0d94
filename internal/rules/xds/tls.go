package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-ratelimit/weir/pkg/fileread"
)

// TLS is files in PEM. They are read for each connection, so that they can be renewed.
type TLS struct {
	Cert, Key  string // shown to the server; empty for none
	CA         string // of the server's certificate; empty for the system's
	ServerName string // that the certificate must have; empty for the host
}

// credentials are those of one connection. While the files cannot be read, for instance because only one of two has
// been replaced, the last ones serve.
func (s *Source) credentials(ctx context.Context, last **tls.Config) (credentials.TransportCredentials, error) {
	if s.o.TLS == nil {
		return insecure.NewCredentials(), nil
	}
	config, err := s.o.TLS.config(ctx)
	switch {
	case err == nil:
		*last = config
	case *last == nil:
		return nil, err
	}
	return credentials.NewTLS(*last), nil
}

func (t *TLS) config(ctx context.Context) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CA != "" {
		text, err := fileread.ReadFile(ctx, t.CA)
		if err != nil {
			return nil, fmt.Errorf("--xds-tls-ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("--xds-tls-ca: " + t.CA + " has no certificate in PEM")
		}
	}
	if t.Cert != "" {
		own, err := fileread.X509KeyPair(ctx, t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("--xds-tls-cert, --xds-tls-key: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}
