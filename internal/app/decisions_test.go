package app

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// At level debug there is a line for each decision, without the values of clients, and at most 100 a second.
func TestDecisionsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := casetest.Compile(t, `
domain: shop
descriptors:
  - {key: client, rate_limit: {requests_per_unit: 1, unit: year}}
  - {key: path, value: /a*, rate_limit: {requests_per_unit: 5, unit: year}}
`)
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		log := &proctest.Buffer{}
		d, err := decide.New(decide.Options{
			Rules: func() *descriptors.Set { return set }, Store: store,
			Watchers: []decide.Watcher{
				newDecisionLog(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))),
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(cost int64, pairs ...string) {
			r := d.NewRequest()
			r.Domain = "shop"
			for i := 0; i < len(pairs); i += 2 {
				r.Add(decide.Descriptor{Cost: cost, Entries: []descriptors.Entry{{Key: pairs[i], Value: pairs[i+1]}}})
			}
			if d.Decide(r); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		ask(1, "client", "secret")
		ask(2, "client", "secret", "path", "/ab", "other", "x")
		for _, want := range []string{
			`domain=shop denied=false descriptors="client cost 1, fixed_window: 1 per 365d allowed, 0 remaining"`,
			`domain=shop denied=true descriptors="client cost 2, fixed_window: 1 per 365d denied, 0 remaining; ` +
				`path=/a* cost 2, fixed_window: 5 per 365d uncharged, 5 remaining; no rule cost 2"`,
		} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log has not %s:\n%s", want, log)
			}
		}
		if strings.Contains(log.String(), "secret") {
			t.Errorf("the log has a value:\n%s", log)
		}
		for i := range 1000 {
			ask(1, "path", fmt.Sprintf("/a%d", i))
		}
		if n := strings.Count(log.String(), "request decided"); n != 100 {
			t.Errorf("%d lines in a second, want 100", n)
		}
		time.Sleep(time.Second)
		if ask(1, "path", "/a"); !strings.Contains(log.String(), "lines_skipped=902") {
			t.Errorf("the log does not say how many lines were left out: ...%s", log.String()[len(log.String())-300:])
		}
	})
}
