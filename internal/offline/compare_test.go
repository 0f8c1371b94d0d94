package offline

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

func compile(tb testing.TB, rules string) *descriptors.Set {
	tb.Helper()
	set, err := rulefile.Compile(
		[]rulefile.File{{Name: "rules.yaml", Data: []byte("domain: shop\ndescriptors:\n" + rules)}},
	)
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// perClient lets n requests a minute of each client pass.
func perClient(tb testing.TB, n int) *descriptors.Set {
	tb.Helper()
	return compile(tb, fmt.Sprintf("- {key: client, rate_limit: {name: each, requests_per_unit: %d, unit: minute}}\n", n))
}

var clients = LogOptions{
	Domain: "shop", TimeField: "start_time", Mappings: [][]Mapping{{{Key: "client", Field: "who"}}},
}

// access is a line of an access log so many seconds after the beginning of an hour.
func access(second float64, who string) string {
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC).Add(time.Duration(second * float64(time.Second)))
	return fmt.Sprintf(`{"start_time":%q,"who":%q}`+"\n", at.Format(time.RFC3339Nano), who)
}

func replayed(tb testing.TB, before, after *descriptors.Set, log string, o LogOptions) *Comparison {
	tb.Helper()
	r, err := Compare(tb.Context(), before, after, strings.NewReader(log), o, 2)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func newlyDenied(key string, n int64) *KeyCount {
	return &KeyCount{Key: key, NewCount: NewCount{NewlyDenied: n}}
}

// In each of two minutes ann comes 5 times, bob 2 and cid 4 times: 3 a minute in place of 4 concerns ann and cid.
func TestWhoIsDenied(t *testing.T) {
	var log strings.Builder
	for minute := range 2 {
		for i, who := range strings.Fields("ann bob ann cid ann cid bob cid ann cid ann") {
			log.WriteString(access(float64(60*minute+i), who))
		}
	}
	got := replayed(t, perClient(t, 4), perClient(t, 3), log.String(), clients)
	want := &Comparison{
		Log: Log{
			From:     time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC),
			To:       time.Date(2026, 1, 31, 12, 1, 10, 0, time.UTC),
			Requests: 22, Lines: 22,
		},
		DeniedBefore: 2, DeniedAfter: 6, NewCount: NewCount{NewlyDenied: 4},
		Rules: []*RuleCount{{
			Domain: "shop", Rule: "client", Limit: "each", NewCount: NewCount{NewlyDenied: 4},
			Keys: []*KeyCount{newlyDenied("client=ann", 2), newlyDenied("client=cid", 2)},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	back := replayed(t, perClient(t, 3), perClient(t, 4), log.String(), clients)
	if back.NewlyAllowed != 4 || back.NewlyDenied != 0 || back.Rules[0].NewlyAllowed != 4 ||
		back.Rules[0].Keys[0].NewlyAllowed != 2 {
		t.Errorf("the other way round: %+v", back)
	}
}

// Lines are replayed in the order of their times: out of order, the same.
func TestOrder(t *testing.T) {
	var lines []string
	for i := range 3000 {
		lines = append(lines, access(float64(i)/50, fmt.Sprint("c", i%7)))
	}
	before, after := perClient(t, 400), perClient(t, 300)
	want := replayed(t, before, after, strings.Join(lines, ""), clients)
	if want.NewlyDenied == 0 {
		t.Fatal("nothing is denied: this shows nothing")
	}
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	if diff := cmp.Diff(want, replayed(t, before, after, strings.Join(lines, ""), clients)); diff != "" {
		t.Error(diff)
	}
}

// Lines of one time keep their order.
func TestOrderOfOneTime(t *testing.T) {
	var log strings.Builder
	for i := range 500 {
		log.WriteString(access(float64(i/100), strconv.Itoa(i)))
	}
	next := 0
	_, err := ReadLog(t.Context(), strings.NewReader(log.String()), clients, func(r *Request) error {
		if got := r.Descriptors[0].Entries[0].Value; got != strconv.Itoa(next) {
			t.Fatalf("line %s is replayed as number %d", got, next)
		}
		next++
		return nil
	})
	if err != nil || next != 500 {
		t.Fatalf("%d lines, %v", next, err)
	}
}

// What comes later than that is left out, and counted.
func TestLateLines(t *testing.T) {
	var log strings.Builder
	for i := range maxWaiting + 5 {
		log.WriteString(access(100+float64(i)/1000, "ann"))
	}
	log.WriteString(access(0, "bob"))
	got := replayed(t, perClient(t, 1), perClient(t, 1), log.String(), clients)
	if got.BadLines != 1 || got.Requests != maxWaiting+5 {
		t.Errorf("%d bad lines and %d requests, want 1 and %d", got.BadLines, got.Requests, maxWaiting+5)
	}
}

func TestBadLines(t *testing.T) {
	log := access(0, "ann") + "{\n" + `{"who":"bob"}` + "\n\n" + `{"start_time":"noon","who":"bob"}` + "\n" +
		`{"start_time":"2026-01-31T12:00:00Z"}` + "\n" + `{"start_time":1769860800.5,"who":"` + strings.Repeat("x", maxLine) +
		"\"}\n" + access(1, "ann")
	got := replayed(t, perClient(t, 1), perClient(t, 1), log, clients)
	want := []BadLine{
		{2, "unexpected end of JSON input"},
		{3, "no field start_time with the time; name another field with --time-field"},
		{5, `start_time: "noon" is neither a time such as 2026-01-31T12:00:00.000Z nor a number of seconds since 1970, before 2112`},
		{7, "is longer than 65536 bytes"},
	}
	if diff := cmp.Diff(want, got.Bad); diff != "" {
		t.Error(diff)
	}
	if got.Requests != 2 || got.Lines != 7 || got.BadLines != 4 || got.WithoutDescriptor != 1 {
		t.Errorf("%+v", got)
	}
	_, err := Compare(t.Context(), perClient(t, 1), perClient(t, 1), strings.NewReader("x\n"), clients, 2)
	if err == nil || !strings.HasPrefix(err.Error(), "no line can be used; line 1: invalid character") {
		t.Error(err)
	}
}

// Every line whose time cannot be used is counted and named, whatever it has: none ends the program.
func TestTimesOfNoUse(t *testing.T) {
	set := compile(t, "- {key: client, rate_limits: [{name: a, algorithm: funnel, requests_per_unit: 1, unit: second}, "+
		"{name: b, requests_per_unit: 1, unit: month, align: calendar}]}\n")
	for _, at := range []string{
		`"9999-12-31T23:59:59Z"`, `"2112-10-01T00:00:00Z"`, `"1969-12-31T23:59:59Z"`, `"0000-01-01T00:00:00Z"`,
		`9.9e18`, `1e300`, `-1`, `"NaN"`, `"Inf"`, `{}`, `[]`, `null`, `"\u0000"`, `true`,
	} {
		got := replayed(t, set, set, access(0, "ann")+`{"start_time": `+at+`, "who": "ann"}`+"\n"+access(1, "ann"), clients)
		if got.Requests != 2 || got.BadLines != 1 || got.Bad[0].Line != 2 || !strings.Contains(got.Bad[0].Error, "start_time") {
			t.Errorf("at %s: %+v", at, got)
		}
	}
}

func TestTimes(t *testing.T) {
	for _, text := range []string{
		`"2026-01-31T12:00:00.5Z"`, `"2026-01-31T13:00:00.5+01:00"`, "1769860800.5", `"1769860800.5"`,
	} {
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if got, err := moment("t", v); err != nil || got != 1769860800500000 {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
}

func TestMappings(t *testing.T) {
	got, err := ParseMappings(`path="/a\,"b",remote_address=request.peer,x=:y`)
	want := []Mapping{{"path", "", `/a,"b`}, {"remote_address", "request.peer", ""}, {"x", ":y", ""}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, wrong := range []string{"path", "=x", "path=", `path="x`, `path="x"y`} {
		if _, err := ParseMappings(wrong); err == nil || !strings.Contains(err.Error(), "write key=") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	fields := map[string]any{"request": map[string]any{"peer": "[2001:db8::1]:4711"}, ":y": 7.0, "gone": "-"}
	entries, ok := entriesOf(fields, got)
	if diff := cmp.Diff(
		[]descriptors.Entry{
			{Key: "path", Value: `/a,"b`},
			{Key: "remote_address", Value: "2001:db8::1"},
			{Key: "x", Value: "7"},
		},
		entries,
	); diff != "" ||
		!ok {
		t.Error(ok, diff)
	}
	if _, ok := entriesOf(fields, []Mapping{{Key: "a", Field: "gone"}}); ok {
		t.Error("a descriptor of a field that is not there")
	}
}

// A rule in shadow mode denies nobody, and shows what it would.
func TestShadow(t *testing.T) {
	shadow := compile(t, "- {key: client, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: hour}}\n")
	got := replayed(t, compile(t, "- {key: client}\n"), shadow, access(0, "ann")+access(1, "ann"), clients)
	if got.NewlyDenied != 0 || len(got.Rules) != 1 || got.Rules[0].ShadowAfter != 1 || got.Rules[0].ShadowBefore != 0 {
		t.Errorf("%+v", got)
	}
}

// What is held in memory does not grow with the log.
func TestMemoryIsBounded(t *testing.T) {
	set := perClient(t, 1)
	r := &reader{LogOptions: clients, do: func(*Request) error { return nil }}
	for i := range maxWaiting + 100 {
		r.line(int64(i), []byte(access(float64(i), fmt.Sprint("c", i))))
	}
	if len(r.waiting) > maxWaiting {
		t.Errorf("%d lines wait, more than %d", len(r.waiting), maxWaiting)
	}
	c := newComparing()
	limit := set.Limits()[0]
	for i := range maxKeys + 10 {
		c.key(limit, fmt.Sprintf("fixed_window|shop|client=%d", i)).NewlyDenied++
	}
	if c.keyCount != maxKeys+1 || c.key(limit, "(others)").NewlyDenied != 10 {
		t.Errorf("%d keys are counted, want %d and the others", c.keyCount, maxKeys)
	}
}
