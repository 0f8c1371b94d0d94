package rls

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// TestScenarios plays testdata/scenarios/*.txt in virtual time. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		synctest.Test(t, func(t *testing.T) {
			s.Play(t, (&player{}).do, "rules", "start ...", "wait TIME", "ask ...", "json TEXT ...")
		})
	})
}

// player plays one scenario: it sends requests as bytes, and shows the responses.
type player struct {
	rules    string
	service  *Service
	observed recorder
}

func (p *player) do(c casetest.Command) string {
	switch c.Name {
	case "rules":
		p.rules = c.Text
		return c.Text
	case "start":
		p.start(c)
	case "wait":
		time.Sleep(casetest.Parsed(c, time.ParseDuration, c.Args[0]))
	case "ask":
		return p.ask(c)
	case "json":
		answer, isOver, err := p.service.DecideJSON(c.Context(), strings.NewReader(strings.Join(c.Args, " ")), nil)
		var compact bytes.Buffer
		if err == nil {
			err = json.Compact(&compact, answer)
		}
		if err != nil {
			return p.failed(err)
		}
		return fmt.Sprintf("over %t: %s\n", isOver, &compact)
	}
	return ""
}

// start makes a service at the beginning of an hour, with counters in memory.
func (p *player) start(c casetest.Command) {
	time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
	p.service, _ = service(c.T, p.rules, func(o *options) {
		o.Observer, o.Store = &p.observed, memory(c.T, nil)
		for _, option := range c.Args {
			switch option {
			case "down":
				o.Store = storeFunc(down)
			case "hung":
				o.Store = storeFunc(func(ctx context.Context, _ []limiter.Hit, _ []limiter.Decision) error {
					p.observed.add("the store is called")
					<-ctx.Done()
					return fmt.Errorf("%w: %w", limiter.ErrUnavailable, ctx.Err())
				})
			case "no_rules":
				o.Rules = func() *descriptors.Set { return nil }
			case "metadata":
				o.DynamicMetadata = true
			case "headers":
				o.RatelimitHeaders, o.LimitHeaders = true, decide.LimitHeaders{Limit: "L", Remaining: "R", Reset: "S"}
			default:
				c.UnknownOption(option)
			}
		}
	})
}

// repeated is (TEXT){N}.
var repeated = regexp.MustCompile(`\(([^)]*)\)\{(\d+)\}`)

// starts matches a request's start, which names the process.
var starts = regexp.MustCompile(`(weir_start":")[^"]+`)

// ask sends a request, or several at the same moment, and shows the responses in the order of the requests.
func (p *player) ask(c casetest.Command) string {
	req, times := &pb.RateLimitRequest{Domain: "shop"}, 1
	gone := context.WithCancel
	malformed := false
	text := repeated.ReplaceAllStringFunc(strings.Join(c.Args, " "), func(found string) string {
		parts := repeated.FindStringSubmatch(found)
		return strings.Repeat(parts[1], casetest.Parsed(c, strconv.Atoi, parts[2]))
	})
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		duration := func() time.Duration { return casetest.Parsed(c, time.ParseDuration, value) }
		switch {
		case name == "domain":
			req.Domain = value
		case name == "addend":
			req.HitsAddend = uint32(number(c, value))
		case name == "within":
			gone = func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, duration())
			}
		case name == "cancelled":
			gone = func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				if after := duration(); after > 0 {
					time.AfterFunc(after, cancel)
				} else {
					cancel()
				}
				return ctx, cancel
			}
		case word == "malformed":
			malformed = true
		case strings.HasPrefix(name, "x") && value == "":
			times = casetest.Parsed(c, strconv.Atoi, name[1:])
		default:
			req.Descriptors = append(req.Descriptors, wireDescriptorOf(c, word))
		}
	}
	wire := marshal(c.T, req)
	if malformed {
		wire = append(wire, 0xff)
	}
	answers := make([]string, times)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			ctx, cancel := gone(c.Context())
			defer cancel()
			start := time.Now()
			res, err := sendWire(ctx, p.service, wire)
			after := ""
			if took := time.Since(start); took > 0 {
				after = fmt.Sprintf("after %s: ", took)
			}
			if answers[i] = after + p.failed(err); err == nil {
				answers[i] = after + show(res) + "\n"
			}
			if m := res.GetDynamicMetadata(); m != nil {
				text, _ := json.Marshal(m.AsMap())
				answers[i] += "; metadata " + starts.ReplaceAllString(string(text), "$1...") + "\n"
			}
		})
		synctest.Wait()
	}
	wg.Wait()
	answer := strings.Join(answers, "")
	if n := p.service.o.Decider.Delayed().Now; n > 0 {
		answer += fmt.Sprintf("; %d are delayed\n", n)
	}
	return answer
}

// failed is an error, and what was observed of it.
func (p *player) failed(err error) string {
	var observed []string
	for _, line := range p.observed.take() {
		if strings.HasPrefix(line, "rejected ") || strings.Contains(line, "store ") {
			observed = append(observed, line)
		}
	}
	message := strings.ReplaceAll(status.Convert(err).Message(), "\u00a0", " ") // which protobuf writes in some builds
	return fmt.Sprintf("%s: %s\n; %s\n", status.Code(err), message, strings.Join(observed, ", "))
}

func number(c casetest.Command, word string) uint64 {
	c.Helper()
	return casetest.Parsed(c, func(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) }, word)
}

// ownLimit matches the text after @ in a descriptor: REQUESTS/UNITxMULTIPLIER.
var ownLimit = regexp.MustCompile(`^(\d+)/([a-z]+|-?\d+)(?:x(\d+))?$`)

// wireDescriptorOf reads !key=value,key=value*ADDEND@REQUESTS/UNITxMULTIPLIER, where only the entries must be there. -
// has none.
func wireDescriptorOf(c casetest.Command, word string) *commonpb.RateLimitDescriptor {
	word, isNegative := strings.CutPrefix(word, "!")
	word, limit, hasLimit := strings.Cut(word, "@")
	text, addend, hasAddend := strings.Cut(word, "*")
	d := descriptor(strings.Split(text, ",")...)
	if text == "-" {
		d.Entries = nil
	}
	d.IsNegativeHits = isNegative
	if hasAddend {
		d.HitsAddend = wrapperspb.UInt64(number(c, addend))
	}
	if !hasLimit {
		return d
	}
	parts := ownLimit.FindStringSubmatch(limit)
	if parts == nil {
		c.Fatalf("%q is no limit", limit)
	}
	unit, ok := typepb.RateLimitUnit_value[strings.ToUpper(parts[2])]
	if !ok {
		unit = int32(casetest.Parsed(c, strconv.Atoi, parts[2]))
	}
	d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{
		RequestsPerUnit: uint32(number(c, parts[1])), Unit: typepb.RateLimitUnit(unit),
	}
	if parts[3] != "" {
		d.Limit.UnitMultiplier = wrapperspb.UInt32(uint32(number(c, parts[3])))
	}
	return d
}
