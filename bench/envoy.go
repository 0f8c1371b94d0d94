package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// nameNone is Envoy without the rate limit filter.
const nameNone = "none"

// front is a listener of Envoy: with a rate limit service behind it, or without.
type front struct {
	name    string
	addr    string  // host:port of the listener
	service *target // nil: no filter
	// Host and port of the listener and of the service, for the configuration.
	Host, Port, ServiceHost, ServicePort string
}

// Name is the name in the configuration.
func (f *front) Name() string { return f.name }

// Filtered says whether there is a service to ask.
func (f *front) Filtered() bool { return f.service != nil }

// proxy is a running Envoy with all fronts.
type proxy struct {
	*launch.Process

	fronts []*front
}

// The filter never fails open: whatever is wrong with a call is a status 500, which counts as an error.
var bootstrap = template.Must(template.New("envoy").Parse(`
static_resources:
  listeners:
{{- range .Fronts}}
    - name: {{.Name}}
      address: {socket_address: {address: {{.Host}}, port_value: {{.Port}}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: {{.Name}}
                http_filters:
{{- if .Filtered}}
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: {{$.Domain}}
                      failure_mode_deny: true
                      timeout: 2s
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {envoy_grpc: {cluster_name: {{.Name}}}}
{{- end}}
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      rate_limits: [{actions: [{request_headers: {header_name: x-key, descriptor_key: {{$.Key}}}}]}]
                      routes: [{match: {prefix: /}, route: {cluster: upstream}}]
{{- end}}
  clusters:
    - name: upstream
      load_assignment:
        cluster_name: upstream
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: {{.UpstreamHost}}, port_value: {{.UpstreamPort}}}}}
{{- range .Fronts}}{{if .Filtered}}
    - name: {{.Name}}
      load_assignment:
        cluster_name: {{.Name}}
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: {{.ServiceHost}}, port_value: {{.ServicePort}}}}}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
{{- end}}{{end}}
`))

// startEnvoy starts an Envoy with a front for each target and one without a filter, before a given upstream.
func startEnvoy(ctx context.Context, dir string, w *workload, targets []*target, upstream string) (*proxy, error) {
	binary, err := launch.FindEnvoy()
	if err != nil {
		return nil, err
	}
	p := &proxy{fronts: []*front{{name: nameNone}}}
	for _, t := range targets {
		p.fronts = append(p.fronts, &front{name: t.name, service: t})
	}
	for _, f := range p.fronts {
		if f.addr, err = launch.FreeAddr(ctx); err != nil {
			return nil, err
		}
		f.Host, f.Port, _ = strings.Cut(f.addr, ":")
		if f.service != nil {
			f.ServiceHost, f.ServicePort, _ = strings.Cut(f.service.addr, ":")
		}
	}
	host, port, _ := strings.Cut(upstream, ":")
	var config bytes.Buffer
	err = bootstrap.Execute(&config, map[string]any{
		"Fronts": p.fronts, "Domain": w.name, "Key": ruleKey(0, 0), "UpstreamHost": host, "UpstreamPort": port,
	})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, config.Bytes(), 0o600); err != nil {
		return nil, err
	}
	p.Process, err = launch.Start("envoy", exec.Command(binary, //nolint:gosec,noctx // the user's Envoy; Stop ends it
		"--config-path", file, "--disable-hot-restart", "--log-level", "warning"))
	if err != nil {
		return nil, err
	}
	for _, f := range p.fronts {
		if err := p.Await(ctx, patience, f.answers); err != nil {
			p.Stop(patience)
			return nil, err
		}
	}
	return p, nil
}

// answers is nil if the front lets a request through.
func (f *front) answers(ctx context.Context) error {
	t := &tally{}
	f.ask(ctx, func() []byte { return httpRequests(1)[0] }, time.Now(), t)
	return t.failed()
}

// httpRequests are requests with the header that the rate limit filter asks for.
func httpRequests(keys int) [][]byte {
	all := make([][]byte, keys)
	for k := range all {
		all[k] = []byte("GET / HTTP/1.1\r\nhost: bench\r\nx-key: k" + strconv.Itoa(k) + "\r\n\r\n")
	}
	return all
}

// ask sends requests over one connection, one after the other, until the time is over, and at least one.
func (f *front) ask(ctx context.Context, next func() []byte, until time.Time, t *tally) {
	fail := func(err error) { t.errors, t.firstErr = t.errors+1, err }
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", f.addr)
	if err != nil {
		fail(err)
		return
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	if err := conn.SetDeadline(until.Add(patienceOfCaller)); err != nil {
		fail(err)
		return
	}
	buf := make([]byte, 4096)
	for now := time.Now(); ; {
		if _, err := conn.Write(next()); err != nil {
			fail(err)
			return
		}
		status, err := readResponse(conn, buf)
		if err != nil {
			fail(err)
			return
		}
		end := time.Now()
		t.latency.add(end.Sub(now))
		if status != "200" {
			fail(fmt.Errorf("status %s of Envoy, want 200", status))
			return
		}
		t.ok++
		if now = end; !now.Before(until) {
			return
		}
	}
}

// readResponse reads one response of at most len(buf) bytes, as Envoy writes them, and returns its status.
func readResponse(r io.Reader, buf []byte) (status string, err error) {
	for n := 0; ; {
		got, err := r.Read(buf[n:])
		if err != nil {
			return "", err
		}
		n += got
		head, body, whole := bytes.Cut(buf[:n], []byte("\r\n\r\n"))
		if !whole {
			continue
		}
		length, err := contentLength(head)
		if err != nil {
			return "", err
		}
		if len(body) >= length {
			_, rest, _ := strings.Cut(string(head[:min(len(head), len("HTTP/1.1 200"))]), " ")
			return rest, nil
		}
	}
}

// contentLength is that of a response's head. Envoy writes names in lower case.
func contentLength(head []byte) (int, error) {
	_, rest, ok := bytes.Cut(head, []byte("\r\ncontent-length: "))
	if !ok {
		return 0, fmt.Errorf("a response without a length: %q", head)
	}
	digits, _, _ := bytes.Cut(rest, []byte("\r\n"))
	return strconv.Atoi(string(digits))
}

// serveUpstream answers every HTTP request without a body with 200, until the listener is closed.
func serveUpstream(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close() //nolint:errcheck // the other side has closed it
			buf := make([]byte, 4096)
			for n := 0; ; {
				got, err := conn.Read(buf[n:])
				if err != nil {
					return
				}
				if n += got; !bytes.HasSuffix(buf[:n], []byte("\r\n\r\n")) {
					continue
				}
				n = 0
				if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"); err != nil {
					return
				}
			}
		}()
	}
}
