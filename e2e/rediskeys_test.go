//go:build e2e

package e2e

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const keysPage = "../docs/reference/redis-keys.md"

// keyRules have a limit of every algorithm, and counters of every kind of name.
func keyRules(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("domain: shop\ndescriptors:\n")
	for _, name := range step.Names(limiter.Algorithms()) {
		rate := "requests_per_unit: 10, unit: hour"
		if a, err := limiter.ParseAlgorithm(name); err != nil {
			t.Fatal(err)
		} else if a.CountsInFlight() {
			rate = "requests_per_unit: 10, lease: 60s"
		}
		fmt.Fprintf(&b, "  - {key: algorithm, value: %s, rate_limit: {algorithm: %s, %s}}\n", name, name, rate)
	}
	b.WriteString(`
  - {key: interval, rate_limit: {algorithm: token_bucket, refill: interval, requests_per_unit: 10, unit: hour}}
  - {key: hidden, hash_values: true, rate_limit: {requests_per_unit: 10, unit: hour}}
  - {key: leased, rate_limit: {algorithm: funnel, requests_per_unit: 10000, unit: second, consistency: leased}}
  - key: several
    rate_limits:
      - {name: a name, requests_per_unit: 10, unit: hour}
      - {requests_per_unit: 10, unit: minute}
      - {requests_per_unit: 10, unit: day}
      - {requests_per_unit: 11, unit: day}
`)
	return b.String()
}

// monitor collects the commands that a server runs, those of scripts included.
type monitor struct {
	mu       sync.Mutex
	commands [][]string
}

var monitored = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

func startMonitor(t *testing.T, server *redistest.Server) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	m, done := &monitor{}, make(chan struct{})
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(conn)
	if line, err := lines.ReadString('\n'); err != nil || line != "+OK\r\n" {
		t.Fatalf("MONITOR: %q, %v", line, err)
	}
	go func() {
		defer close(done)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			var command []string
			for _, word := range monitored.FindAllString(line, -1) {
				text, err := strconv.Unquote(word)
				if err != nil {
					t.Errorf("MONITOR: %s: %v", word, err)
				}
				command = append(command, text)
			}
			m.mu.Lock()
			m.commands = append(m.commands, command)
			m.mu.Unlock()
		}
	}()
	return m
}

// has reports whether a command that begins with these words was run.
func (m *monitor) has(words ...string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.commands, func(c []string) bool {
		return len(c) >= len(words) && slices.EqualFunc(c[:len(words)], words, strings.EqualFold)
	})
}

// about returns how many commands up to now have a word that contains the text.
func (m *monitor) about(t *testing.T, server *redistest.Server, text string) (n int) {
	t.Helper()
	mark := rand.Text()
	redistest.Do(t, server, "ping", mark)
	proctest.Eventually(t, "seen by the monitor", func() bool { return m.has("ping", mark) })
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.commands {
		if slices.ContainsFunc(c, func(word string) bool { return strings.Contains(word, text) }) {
			n++
		}
	}
	return n
}

// names returns the keys and the channels that the commands name.
func (m *monitor) names(t *testing.T) (keys, channels map[string]bool) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	keys, channels = map[string]bool{}, map[string]bool{}
	for _, c := range m.commands {
		add, names := keys, c[1:min(2, len(c))]
		switch strings.ToLower(c[0]) {
		case "get", "set", "setrange", "del", "unlink", "pttl", "type", "hget", "hset", "hmget", "hkeys", "hdel",
			"hincrby", "cl.throttle":
		case "mget":
			names = c[1:]
		case "memory":
			names = c[2:3]
		case "eval", "evalsha":
			n, err := strconv.Atoi(c[2])
			if err != nil {
				t.Fatal(err)
			}
			names = c[3 : 3+n]
		case "publish":
			add = channels
		case "subscribe", "unsubscribe":
			add, names = channels, c[1:]
		case "time", "ping", "client", "hello", "select", "scan", "config", "monitor", "script":
			names = nil
		default:
			t.Errorf("the command %q is new: name its keys here", c[0])
		}
		for _, name := range names {
			add[name] = true
		}
	}
	return keys, channels
}

// tableRows returns the rows of the table below this header of a page, each as its cells.
func tableRows(t *testing.T, page, header string) (rows [][]string) {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n"+header)
	if !ok {
		t.Fatalf("%s has no table %q", keysPage, header)
	}
	for i, line := range strings.Split(rest, "\n")[1:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		if i == 0 {
			continue // |---|
		}
		line = strings.ReplaceAll(strings.Trim(line, "| "), `\|`, "\x00")
		var cells []string
		for cell := range strings.SplitSeq(line, " | ") {
			cells = append(cells, strings.ReplaceAll(cell, "\x00", "|"))
		}
		rows = append(rows, cells)
	}
	return rows
}

var quoted = regexp.MustCompile("`([^`]*)`")

// codeWords are the words of a cell that are code.
func codeWords(cell string) (all []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	return all
}

// pattern is the form of a name as an expression: [x] may be missing.
func pattern(form string) *regexp.Regexp {
	e := regexp.QuoteMeta(form)
	e = strings.NewReplacer(`\[`, "(?:", `\]`, ")?").Replace(e)
	e = regexp.MustCompile(`[A-Z]+\\\.\\\.\\\.`).ReplaceAllString(e, `[0-9]+(?: [0-9]+)*`)
	e = strings.ReplaceAll(e, "COUNTER", `[a-z][^|]*\|.+`)
	e = regexp.MustCompile(`\b(0?)[A-Z]{4,}`).ReplaceAllString(e, `$1-?[0-9]+`)
	return regexp.MustCompile("^(?s:" + e + ")$")
}

// docs/reference/redis-keys.md lists every key and channel of Redis that Weir uses: its name, type, form and expiry.
func TestRedisKeys(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(keysPage)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	server := redistest.Start(t)
	seen := startMonitor(t, server)
	command := func(args ...string) {
		t.Helper()
		if out, err := proctest.RunWeir(t, args...); err != nil {
			t.Fatalf("weir %v: %v\n%s", args, err, out)
		}
	}

	if out, err := publish(t, server, keyRules(t)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var fleet []*weir
	for range 2 {
		fleet = append(fleet, startWeir(t, "store", "--store", server.URL(), "--store-timeout", "1s", "--quota"))
	}
	first := fleet[0]
	c := first.client(t)
	ask := func(req *pb.RateLimitRequest) {
		t.Helper()
		if _, err := c.ShouldRateLimit(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	proctest.Eventually(t, "subscribed to refunds", func() bool { return seen.has("subscribe", "weir:1:refunds") })
	for _, name := range step.Names(limiter.Algorithms()) {
		ask(question("algorithm", name)) // once: a second request would wait for minutes
	}
	for _, key := range []string{"interval", "hidden", "several"} {
		for range 12 { // until it is denied, and from a cached denial
			ask(question(key, "a value|with % and = of 1"))
		}
	}
	for range 300 {
		ask(question("leased", "x"))
	}
	override := question("algorithm", "funnel")
	override.Descriptors[0].Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{
		RequestsPerUnit: 7, Unit: typepb.RateLimitUnit_MINUTE,
	}
	ask(override)
	refund := question("algorithm", "funnel")
	refund.Descriptors[0].IsNegativeHits = true
	ask(refund)
	command("reset", "--server", first.Socket(), "--domain", "shop", "interval=gone")
	command("get", "--server", first.HTTP, "--domain", "shop", "several=x")
	reportUsage(t, first, map[string]string{"algorithm": "funnel"})
	proctest.Eventually(t, "demand is in Redis", func() bool {
		return seen.about(t, server, "quota_demand") > 0
	})
	first.Page("/readyz")

	keys, channels := seen.names(t)
	checkNames(t, "key", keys, tableRows(t, page, "| key | type |"))
	checkNames(t, "channel", channels, tableRows(t, page, "| channel | message |"))
	stored := redistest.Client(t, server.URL(), time.Second)
	checkStates(t, stored, page)
	checkPublished(t, stored, page)
}

// reportUsage has an Envoy's quota filter report a new bucket, whose stream stays open.
func reportUsage(t *testing.T, w *weir, bucket map[string]string) {
	t.Helper()
	stream, err := quotapb.NewRateLimitQuotaServiceClient(dial(t, w.GRPC)).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&quotapb.RateLimitQuotaUsageReports{
		Domain: "shop",
		BucketQuotaUsages: []*quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{{
			BucketId: &quotapb.BucketId{Bucket: bucket}, NumRequestsAllowed: 1,
		}},
	}); err != nil {
		t.Fatal(err)
	}
}

// checkNames compares names with the forms in the first cells of a table. One of a Cluster alone need not be there.
func checkNames(t *testing.T, what string, names map[string]bool, rows [][]string) {
	t.Helper()
	if len(names) == 0 {
		t.Errorf("no %s was seen", what)
	}
	used := map[int]bool{}
	for name := range names {
		var in []int
		for i, row := range rows {
			if pattern(codeWords(row[0])[0]).MatchString(name) {
				in = append(in, i)
			}
		}
		if len(in) == 0 {
			t.Errorf("%s does not list the %s %q", keysPage, what, name)
		}
		for _, i := range in {
			used[i] = true
		}
	}
	for i, row := range rows {
		if !used[i] && !strings.Contains(row[2], "of a Cluster") {
			t.Errorf("%s lists the %s %s, which was not seen", keysPage, what, row[0])
		}
	}
}

// checkStates compares what is in Redis with the page: types, times to live, and the states of counters.
func checkStates(t *testing.T, stored redis.UniversalClient, page string) {
	t.Helper()
	ctx := t.Context()
	forms, used := map[string]string{}, map[string]bool{}
	for _, row := range tableRows(t, page, "| algorithm | form |") {
		for _, algorithm := range codeWords(row[0]) {
			forms[algorithm] = strings.Trim(row[1], "`")
		}
	}
	kinds := tableRows(t, page, "| key | type |")
	for _, key := range stored.Keys(ctx, "*").Val() {
		var row []string
		for _, r := range kinds {
			if pattern(codeWords(r[0])[0]).MatchString(key) {
				row = r
			}
		}
		if row == nil {
			continue // checkNames says so
		}
		if got := stored.Type(ctx, key).Val(); got != row[1] {
			t.Errorf("%q is a %s, %s says %s", key, got, keysPage, row[1])
		}
		if ttl := stored.PTTL(ctx, key).Val(); (ttl < 0) != (row[3] == "none") {
			t.Errorf("%q has %s to live, %s says %s", key, ttl, keysPage, row[3])
		}
		name, _, isCounter := strings.Cut(strings.TrimPrefix(key, "weir:1:"), "|")
		if !isCounter {
			continue
		}
		algorithm := name[:len(name)-len(strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz_."))]
		used[algorithm] = true
		state := stored.Get(ctx, key).Val()
		switch form := forms[algorithm]; {
		case form == "":
			t.Errorf("%s does not have the form of %q", keysPage, algorithm)
		case !hasForm(form, state):
			t.Errorf("%q is %q, %s says %s", key, state, keysPage, form)
		}
	}
	for algorithm := range forms {
		if !used[algorithm] && !strings.HasSuffix(algorithm, ".redis_cell") {
			t.Errorf("%s has the form of %s, of which no counter is there", keysPage, algorithm)
		}
	}
}

// hasForm reports whether a state has as many numbers as a form has words, and whole ones. [X] may be missing, and
// X... is any number of them: those of a log are doubles, those of a sliding window have 4 bytes.
func hasForm(form, state string) bool {
	if form == "a number in digits" {
		return regexp.MustCompile(`^[0-9]+$`).MatchString(state)
	}
	fixed := 0
	optional, repeated := strings.Contains(form, "["), strings.Contains(form, "...")
	for word := range strings.FieldsSeq(form) {
		if !strings.HasPrefix(word, "[") && !strings.HasSuffix(word, "...") {
			fixed++
		}
	}
	for i := range min(fixed, len(state)/8) {
		v := math.Float64frombits(binary.BigEndian.Uint64([]byte(state[8*i : 8*i+8])))
		if v != math.Trunc(v) || v < 0 {
			return false
		}
	}
	rest := len(state) - 8*fixed
	switch {
	case strings.Count(form, "...") == 2:
		return rest >= 16 && rest%16 == 0
	case repeated:
		return rest >= 4 && rest%4 == 0
	default:
		return rest == 0 || optional && rest == 8
	}
}

// checkPublished compares the fields of the published rules with the page.
func checkPublished(t *testing.T, stored redis.UniversalClient, page string) {
	t.Helper()
	fields := stored.HGetAll(t.Context(), "weir:1:rules").Val()
	if len(fields) == 0 {
		t.Error("weir:1:rules has no fields")
	}
	var forms []string
	for _, row := range tableRows(t, page, "| field | contents |") {
		forms = append(forms, codeWords(row[0])[0])
	}
	for field := range fields {
		if !slices.ContainsFunc(forms, func(form string) bool { return pattern(form).MatchString(field) }) {
			t.Errorf("%s does not list the field %q", keysPage, field)
		}
	}
	if !json.Valid([]byte(fields["info"])) {
		t.Errorf("info is no JSON: %q", fields["info"])
	}
}
