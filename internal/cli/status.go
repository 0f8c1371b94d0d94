package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

type statusCmd struct {
	remoteFlags
}

func (*statusCmd) Help() string {
	return `Shows whether the process is ready, its version, its store, its rules, the quotas assigned to Envoys, and
errors of newer rules.

Exit codes: 0 shown, ready or not (see weir health), 1 no response, 2 the command line is wrong.

Examples:

    weir status
    weir status --server http://weir-3:8080 --format json`
}

func (c *statusCmd) Run(ctx context.Context, io streams) error {
	return ask(&c.remoteFlags, io, func(to *adminapi.Client, s *adminapi.Status) error {
		return to.Get(ctx, "/status", nil, s)
	}, func(io streams, s *adminapi.Status) { printStatus(io.out, s) })
}

func printStatus(w io.Writer, s *adminapi.Status) {
	line := aligned(w, "")
	switch {
	case s.Degraded != "":
		line("state", "degraded")
	case s.Ready:
		line("state", "ready")
	default:
		line("state", "not ready")
	}
	if s.Problem != "" {
		line("", "%s", s.Problem)
	}
	for _, check := range s.Checks {
		if check.Error != "" && !strings.Contains(s.Problem, check.Error) {
			line("", "%s: %s", check.Name, check.Error)
		}
	}
	line("version", "%s", buildLine(&s.Build))
	line("started", "%s, %s ago", s.StartedAt.Format(time.RFC3339), s.Now.Sub(s.StartedAt).Round(time.Second))
	if q := s.Quotas; q == nil {
		line("quotas", "off")
	} else {
		line("quotas", "on: %s, %s of Envoys, %s", count(q.Streams, "stream"), count(q.Broken, "broken stream"),
			count(q.Buckets, "bucket"))
		if q.Uncharged > 0 {
			line("", "%d requests passed before they were charged; %d of them are not charged yet", q.Uncharged, q.Debt)
		}
	}
	line("store", "%s", s.Store)
	r := &s.Rules
	if r.Hash == "" {
		line("rules", "no rules are loaded")
	} else {
		line("rules", "%s, in force since %s: %s, %s, %s", reload.ShortHash(r.Hash), r.LoadedAt.Format(time.RFC3339),
			count(r.Domains, "domain"), count(r.Rules, "rule"), count(r.Limits, "limit"))
	}
	if p := r.Published; p != nil {
		line("published", "version %d is in force, %d is the newest", p.Version, p.Newest)
		if p.Error != "" {
			line("", "%s", p.Error)
		}
	}
	if x := r.XDS; x != nil {
		connected := "connected"
		if !x.Connected {
			connected = "not connected"
		}
		line("xds", "%s, %s, version %s: %s", x.Server, connected, x.Version, count(x.Domains, "domain"))
		if x.Error != "" {
			line("", "%s", x.Error)
		}
		if x.FindingCount > 0 {
			line("", "%s of the newest response refused, the last valid rules stay in force: %s",
				count(x.RefusedDomains, "domain"), count(x.FindingCount, "finding"))
			printErrors(w, x.Findings, x.FindingCount)
		}
	}
	if len(r.Errors) > 0 {
		line("refused", "newer rules, at %s: %s", r.ErrorsAt.Format(time.RFC3339), count(r.ErrorCount, "error"))
		printErrors(w, r.Errors, r.ErrorCount)
	}
}
