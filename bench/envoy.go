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

// nameNone is the name of an Envoy without the rate limit filter.
const nameNone = "none"

// front is an Envoy in front of the common upstream, as a separate process so that its CPU time and memory can be
// measured. It has at most one filter before the router: the filter calls a service, or is Weir as a dynamic module.
type front struct {
	*launch.Process

	name    string
	addr    string  // host:port of the listener
	filter  string  // YAML in one line, or ""
	service *target // the service that the filter calls, or the Redis of Weir inside Envoy
	modules string  // folder of dynamic modules, or ""
}

// noFilter returns the front with which the others are compared.
func noFilter() *front { return &front{name: nameNone, service: &target{}} }

// asking returns a front with Envoy's rate limit filter. The filter fails closed: a failed call results in status 500,
// which counts as an error.
func asking(domain string, service *target) *front {
	return &front{name: service.name, service: service, filter: fmt.Sprintf(`{name: envoy.filters.http.ratelimit, `+
		`typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, `+
		`domain: %s, failure_mode_deny: true, timeout: 4s, rate_limit_service: {transport_api_version: V3, `+
		`grpc_service: {envoy_grpc: {cluster_name: service}}}}}`, domain)}
}

var bootstrap = template.Must(template.New("envoy").Parse(`
static_resources:
  listeners:
    - name: front
      address: {socket_address: {address: {{.Host}}, port_value: {{.Port}}}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                http_filters:
{{- if .Filter}}
                  - {{.Filter}}
{{- end}}
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      rate_limits: [{actions: [{request_headers: {header_name: x-key, descriptor_key: {{.Key}}}}]}]
                      routes: [{match: {prefix: /}, route: {cluster: upstream}}]
  clusters:
    - name: upstream
      load_assignment:
        cluster_name: upstream
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: {{.UpstreamHost}}, port_value: {{.UpstreamPort}}}}}
{{- if .ServiceAddress}}
    - name: service
      load_assignment:
        cluster_name: service
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {{.ServiceAddress}}}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
{{- end}}
`))

// start starts the front's Envoy before an upstream, and waits until it responds.
func (f *front) start(ctx context.Context, dir, upstream string) error {
	binary, err := launch.FindEnvoy()
	if err != nil {
		return err
	}
	if f.addr, err = launch.FreeAddr(ctx); err != nil {
		return err
	}
	fields := map[string]string{"Filter": f.filter, "Key": ruleKey(0, 0)}
	for what, addr := range map[string]string{"": f.addr, "Upstream": upstream} {
		fields[what+"Host"], fields[what+"Port"], _ = strings.Cut(addr, ":")
	}
	if host, port, ok := strings.Cut(f.service.addr, ":"); ok {
		fields["ServiceAddress"] = "{socket_address: {address: " + host + ", port_value: " + port + "}}"
	}
	var config bytes.Buffer
	if err := bootstrap.Execute(&config, fields); err != nil {
		return err
	}
	file := filepath.Join(dir, "envoy-"+f.name+".yaml")
	if err := os.WriteFile(file, config.Bytes(), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(binary, //nolint:noctx // Stop ends it
		"--config-path", file, "--disable-hot-restart", "--log-level", "warning")
	if f.modules != "" {
		cmd.Env = append(os.Environ(), "ENVOY_DYNAMIC_MODULES_SEARCH_PATH="+f.modules)
	}
	f.Process, err = launch.Start("envoy-"+f.name, cmd)
	if err != nil {
		return err
	}
	if err := f.Await(ctx, patience, f.answers); err != nil {
		f.Stop(patience)
		return err
	}
	return nil
}

// answers returns nil if the front admits a request.
func (f *front) answers(ctx context.Context) error {
	t := &tally{}
	f.ask(ctx, func() []byte { return httpRequests(1)[0] }, time.Now(), t)
	return t.failed()
}

// httpRequests returns requests with the header that the rate limit filter uses.
func httpRequests(keys int) [][]byte {
	all := make([][]byte, keys)
	for k := range all {
		all[k] = []byte("GET / HTTP/1.1\r\nhost: bench\r\nx-key: k" + strconv.Itoa(k) + "\r\n\r\n")
	}
	return all
}

// ask sends requests sequentially over one connection until the time is over, but at least one.
func (f *front) ask(ctx context.Context, next func() []byte, until time.Time, t *tally) {
	fail := func(err error) { t.errors, t.firstErr = t.errors+1, err }
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", f.addr)
	if err != nil {
		fail(err)
		return
	}
	defer conn.Close() //nolint:errcheck // no request is in flight
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
		t.latency = append(t.latency, end.Sub(now))
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

// readResponse reads one response of at most len(buf) bytes, in Envoy's form, and returns its status.
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

// contentLength returns the Content-Length in a response's head. Envoy writes names in lower case.
func contentLength(head []byte) (int, error) {
	_, rest, ok := bytes.Cut(head, []byte("\r\ncontent-length: "))
	if !ok {
		return 0, fmt.Errorf("a response without a length: %q", head)
	}
	digits, _, _ := bytes.Cut(rest, []byte("\r\n"))
	return strconv.Atoi(string(digits))
}

// serveUpstream responds to every HTTP request without a body with 200, until the listener is closed.
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
