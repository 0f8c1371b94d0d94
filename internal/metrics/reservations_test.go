package metrics_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Starts, ends with a token, ends without one and lost ends are counted apart, for limits with a reservation only.
func TestReservations(t *testing.T) {
	m := metrics.New(metrics.Options{MaxRules: 2, NearLimitRatio: 0.8})
	set := compile(t, rule("tokens"), rule("plain"), rule("beyond"))
	m.Prepare(set)
	tokens, plain, beyond := set.Limits()[0], set.Limits()[1], set.Limits()[2]
	tokens.Reservation = &descriptors.Reservation{Estimate: 1000}
	beyond.Reservation = tokens.Reservation
	if diff := cmp.Diff(&adminapi.ReservationCounts{}, m.Reservation(tokens)); diff != "" {
		t.Errorf("before the first request (-want +got):\n%s", diff)
	}
	if got := only(t, m, "weir_reserv"); len(got) > 0 {
		t.Errorf("before the first request: %v", got)
	}

	taken := limiter.Decision{Allowed: true, Remaining: 9, TakenAt: 1}
	for range 3 {
		m.Decided(tokens, decide.Allowed, 1000, &taken)
	}
	m.Decided(tokens, decide.Denied, 1000, &limiter.Decision{})
	m.Decided(tokens, decide.AllowedLocally, 1000, &limiter.Decision{Allowed: true}) // has no token
	m.Decided(tokens, decide.Allowed, 500, &nearly)                                  // an end
	m.Decided(plain, decide.Allowed, 1, &taken)                                      // as concurrency does
	m.Ended(tokens, 1000, 400)
	m.Ended(tokens, 1000, 1500)
	m.Ended(tokens, 1000, 0)
	m.Ended(tokens, 0, 700)
	m.NotEnded(tokens)
	m.Decided(beyond, decide.Allowed, 2, &taken)

	const own, other = `{domain="shop",limit="",rule="tokens"`, `{domain="(other)",limit="(other)",rule="(other)"`
	want := map[string]string{
		"weir_reserved_hits_total" + own + "}":                                                        "3000",
		`weir_reservation_hits_total{domain="shop",kind="charged",limit="",rule="tokens"}`:            "3000",
		`weir_reservation_hits_total{domain="shop",kind="real",limit="",rule="tokens"}`:               "1900",
		"weir_reservation_ends_total" + own + `,token="found"}`:                                       "3",
		"weir_reservation_ends_total" + own + `,token="none"}`:                                        "1",
		"weir_reservation_ends_lost_total" + own + "}":                                                "1",
		"weir_reserved_hits_total" + other + "}":                                                      "2",
		`weir_reservation_hits_total{domain="(other)",kind="charged",limit="(other)",rule="(other)"}`: "0",
		`weir_reservation_hits_total{domain="(other)",kind="real",limit="(other)",rule="(other)"}`:    "0",
		"weir_reservation_ends_total" + other + `,token="found"}`:                                     "0",
		"weir_reservation_ends_total" + other + `,token="none"}`:                                      "0",
		"weir_reservation_ends_lost_total" + other + "}":                                              "0",
	}
	if diff := cmp.Diff(want, only(t, m, "weir_reserv")); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	ratio := 1900.0 / 3000
	counts := &adminapi.ReservationCounts{
		Charged: 3000, Corrected: -1100, Ends: 3, EndsWithoutToken: 1, EndsLost: 1, RealPerCharged: &ratio,
	}
	if diff := cmp.Diff(counts, m.Reservation(tokens)); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	for _, l := range []*descriptors.Limit{plain, beyond} {
		if got := m.Reservation(l); got != nil {
			t.Errorf("%s: %+v, want none", l.Rule.Path, got)
		}
	}
}
