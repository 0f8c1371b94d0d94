package admin_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// TestScenarios plays testdata/scenarios/*.txt. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		t.Chdir(t.TempDir())
		s.Play(t, (&player{}).do, "serve ...", "by ...", "token TEXT", "log", "GET PATH", "POST PATH ...")
	})
}

// player sends requests to a server.
type player struct {
	rules       *fakeRules
	tcp, socket http.Handler
	by          []string // how the client connects, and what it shows
	log         strings.Builder
}

func (p *player) do(c casetest.Command) (answer string) {
	switch c.Name {
	case "serve":
		p.serve(c)
		return c.Text
	case "by":
		p.by = c.Args
	case "token":
		if err := os.WriteFile("token", []byte(c.Args[0]+"\n"), 0o600); err != nil {
			c.Fatalf("%v", err)
		}
	case "log":
		answer = p.log.String()
		p.log.Reset()
	case http.MethodGet, http.MethodPost:
		return p.request(c)
	}
	return answer
}

// serve makes a server with these options and rules.
func (p *player) serve(c casetest.Command) {
	p.rules, p.by = &fakeRules{}, []string{"socket"}
	p.log.Reset()
	store := casetest.StillStore(c.T)
	o := admin.Options{
		Rules: p.rules, Build: adminapi.Build{Version: "v1.2.3"}, Explain: explain, Decisions: decisions,
		Reservation: reservation,
		Metrics:     http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "weir_up 1\n") }),
		Log: slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})),
		Counters: &admin.Counters{
			Rules: p.rules.Set, Store: store,
			Forget: func(_ context.Context, key string) (bool, error) { return store.Reset(key), nil },
		},
	}
	if c.Text != "" {
		p.rules.live = casetest.Compile(c.T, c.Text)
	}
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "loaded", "refused", "unreadable":
			p.rules.status = adminapi.RulesStatus{Hash: "abc", LoadedAt: at, Files: []string{"rules/shop.yaml"}}
			if name == "refused" {
				p.rules.status.Errors = []string{"rules/shop.yaml:3:5: key is missing"}
				p.rules.status.ErrorsAt = at.Add(time.Minute)
			}
			if name != "loaded" {
				p.rules.err = errors.New("rules: permission denied")
			}
		case "rules", "store":
			o.Checks = append(o.Checks, check(name, map[string]error{"down": errors.New("connection refused")}[value]))
		case "published":
			p.rules.status.Published = &adminapi.PublishedStatus{Error: "redis://r:6379/0: connection refused"}
		case "xds":
			p.rules.status.XDS = &adminapi.XDSStatus{Server: "xds://gateway:18001"}
			if value == "lost" {
				p.rules.status.XDS.Error = "Unavailable: connection refused"
			} else {
				p.rules.status.XDS.Findings, p.rules.status.XDS.FindingCount = []string{"domain shop: the key is empty"}, 1
			}
		case "token":
			o.Token = func() (string, error) { return value, nil }
		case "token_file":
			o.HTTPTokenFile = "token"
		case "client_ca":
			o.HTTPTLSClientCA = "ca.pem"
		case "pprof":
			o.Pprof = true
		case "top":
			o.Top = top
		default:
			c.UnknownOption(arg)
		}
	}
	server := admin.NewServer(o)
	p.tcp, p.socket = server.Handler, onSocket(server)
}

// explain returns the query.
func explain(_ context.Context, query url.Values) (any, error) {
	if query.Get("domain") == "bad" {
		return nil, errors.New("no <such> domain")
	}
	return query, nil
}

// decisions are one allowed, and as many denied as the limit's number.
func decisions(l *descriptors.Limit) []uint64 {
	counts := make([]uint64, len(decide.Outcomes()))
	counts[decide.Allowed], counts[decide.Denied] = 1, uint64(l.ID)
	return counts
}

// reservation are those of the limit daily.
func reservation(l *descriptors.Limit) *adminapi.ReservationCounts {
	if l.Name == "daily" {
		return &adminapi.ReservationCounts{Charged: 5, Corrected: -2, Ends: 1, EndsWithoutToken: 3}
	}
	return nil
}

// top returns a key that shows the query.
func top(q topkeys.Query) (adminapi.TopKeys, error) {
	if q.By == "name" {
		return adminapi.TopKeys{}, topkeys.ErrBy
	}
	key := adminapi.TopKey{Domain: q.Domain, Rule: q.Rule, Descriptor: string(q.By), Hits: uint64(q.N)}
	return adminapi.TopKeys{Keys: []adminapi.TopKey{key}, Hashed: q.HashValues}, nil
}

// moments are what differs from run to run.
var moments = regexp.MustCompile(`"(reset_at|since|now)":"[^"]*"`)

// request returns the status and the body, which JSON has in one line, and whether rules were read.
func (p *player) request(c casetest.Command) string {
	body := strings.ReplaceAll(strings.Join(c.Args[1:], " "), "LONG", strings.Repeat("x", 20<<10))
	r := httptest.NewRequestWithContext(c.Context(), c.Name, c.Args[0], strings.NewReader(body))
	h, w, before := p.tcp, httptest.NewRecorder(), p.rules.reloads
	for _, by := range p.by {
		name, value, _ := strings.Cut(by, "=")
		switch name {
		case "socket":
			h = p.socket
		case "local":
			r.RemoteAddr, r.Host = "127.0.0.1:5", "localhost:8080"
		case "token":
			r.Header.Set("Authorization", "Bearer "+value)
		case "certificate":
			r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
		case "another_site":
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		case "remote":
		default:
			c.Fatalf("%q is no client", by)
		}
	}
	h.ServeHTTP(w, r)
	text := w.Body.String()
	if strings.HasPrefix(text, "{") {
		var short bytes.Buffer
		if err := json.Compact(&short, w.Body.Bytes()); err != nil {
			c.Fatalf("%v in %s", err, text)
		}
		text = moments.ReplaceAllString(short.String(), `"$1":"..."`)
	}
	answer := fmt.Sprintf("%d %s\n", w.Code, strings.TrimSuffix(text, "\n"))
	if p.rules.reloads > before {
		answer += "rules were read\n"
	}
	return answer
}
